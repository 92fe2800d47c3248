"""Keras on torch: gradients, steps and evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch

from paceline.core.vectors import Vector


class TorchEngine:
    """Computes with the variables in place."""

    def __init__(self, model: Any, optimizer: Any, trained: Sequence[Any]) -> None:
        self._model, self._optimizer, self._trained = model, optimizer, list(trained)

    def gradients(self, inputs: Any, targets: Any) -> tuple[float, list[Vector | None]]:
        """The mean loss, and its gradient for each trained variable; None for a loss that is not
        finite."""
        outputs = self._model(inputs, training=True)
        loss = self._model.compute_loss(x=inputs, y=targets, y_pred=outputs, training=True)
        value = float(loss.item())
        if not math.isfinite(value):
            return value, [None] * len(self._trained)
        found = torch.autograd.grad(loss, [v.value for v in self._trained], allow_unused=True)
        return value, [None if g is None else keras.ops.convert_to_numpy(g) for g in found]

    def apply(self, gradients: Sequence[Vector | None]) -> None:
        """One step of the optimizer."""
        known = [(g, v) for g, v in zip(gradients, self._trained, strict=True) if g is not None]
        with torch.no_grad():
            tensors = [torch.from_numpy(g).to(v.value.device, v.value.dtype) for g, v in known]
            self._optimizer.apply(tensors, [v for _, v in known])

    def evaluate(self, inputs: Any, targets: Any) -> tuple[Any, float, list[Vector]]:
        """Outputs, mean loss, and what the batch adds to the state of the model's metrics."""
        model = self._model
        with torch.no_grad():
            model.reset_metrics()
            outputs = model(inputs, training=False)
            loss = model.compute_loss(x=inputs, y=targets, y_pred=outputs, training=False)
            model.compute_metrics(x=inputs, y=targets, y_pred=outputs, sample_weight=None)
        states = [np.array(keras.ops.convert_to_numpy(v)) for v in model.metrics_variables]
        return keras.tree.map_structure(keras.ops.convert_to_numpy, outputs), loss.item(), states
