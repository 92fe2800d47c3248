"""Keras on TensorFlow: gradients, steps and evaluation, as graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from paceline.core.vectors import Vector


class TensorflowEngine:
    """Computes in graphs, which are traced again for batches of another shape, and then once more
    for any number of samples."""

    def __init__(self, model: Any, optimizer: Any, trained: Sequence[Any]) -> None:
        self._model, self._optimizer, self._trained = model, optimizer, list(trained)
        self._differentiate = tf.function(self._run_backward, reduce_retracing=True)
        self._evaluate = tf.function(self._run_forward, reduce_retracing=True)
        self._steps: dict[tuple[bool, ...], Any] = {}

    def gradients(self, inputs: Any, targets: Any) -> tuple[float, list[Vector | None]]:
        """The mean loss, and its gradient for each trained variable; None for a loss that is not
        finite."""
        loss, found = self._differentiate(inputs, targets)
        value = float(loss.numpy())
        if not math.isfinite(value):
            return value, [None] * len(self._trained)
        return value, [None if g is None else g.numpy() for g in found]

    def _run_backward(self, inputs: Any, targets: Any) -> tuple[Any, list[Any]]:
        values = [variable.value for variable in self._trained]
        with tf.GradientTape() as tape:
            outputs = self._model(inputs, training=True)
            loss = self._model.compute_loss(x=inputs, y=targets, y_pred=outputs, training=True)
        found = tape.gradient(loss, values)
        return loss, [None if g is None else tf.convert_to_tensor(g) for g in found]

    def apply(self, gradients: Sequence[Vector | None]) -> None:
        """One step of the optimizer."""
        there = tuple(g is not None for g in gradients)
        if there not in self._steps:
            variables = [v for v, known in zip(self._trained, there, strict=True) if known]
            self._steps[there] = tf.function(
                lambda given: self._optimizer.apply(given, variables), autograph=False
            )
        known = zip(gradients, self._trained, strict=True)
        self._steps[there]([tf.constant(g, dtype=v.dtype) for g, v in known if g is not None])

    def evaluate(self, inputs: Any, targets: Any) -> tuple[Any, float, list[Vector]]:
        """Outputs, mean loss, and what the batch adds to the state of the model's metrics."""
        self._model.reset_metrics()
        outputs, loss = self._evaluate(inputs, targets)
        states = [variable.numpy() for variable in self._model.metrics_variables]
        return keras.tree.map_structure(lambda o: o.numpy(), outputs), float(loss.numpy()), states

    def _run_forward(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        model = self._model
        outputs = model(inputs, training=False)
        loss = model.compute_loss(x=inputs, y=targets, y_pred=outputs, training=False)
        model.compute_metrics(x=inputs, y=targets, y_pred=outputs, sample_weight=None)
        return outputs, loss
