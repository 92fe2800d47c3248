"""The Replica of plain numpy, and the example for frameworks that Paceline does not support."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.vectors import Layout, Vector, checksum
from paceline.frameworks.replica import BatchLike
from paceline.frameworks.vector_replica import VectorReplica

Arrays = Mapping[str, Vector]
LossAndGradients = Callable[[Arrays, BatchLike], tuple[float, Arrays]]
"""From parameters and a batch: the mean loss, and its gradient by parameter name."""


class NumpyReplica(VectorReplica):
    """Arrays trained by SGD with momentum on a hand-written gradient."""

    def __init__(
        self,
        arrays: Arrays,
        loss_and_gradients: LossAndGradients,
        lr: float = 0.01,
        momentum: float = 0.0,
        count_correct: Callable[[Arrays, BatchLike], int] | None = None,
    ) -> None:
        self.learning_rate, self._base_rate, self._momentum = lr, lr, momentum
        self._loss_and_gradients, self._count_correct = loss_and_gradients, count_correct
        layout = Layout.of((name, a.shape, str(a.dtype)) for name, a in arrays.items())
        self._velocity = layout.empty_vector()
        super().__init__(layout, list(arrays.values()))

    def rehome(self, parameters: Vector, gradients: Vector) -> None:
        super().rehome(parameters, gradients)
        views = self.layout.views(parameters)
        self.arrays = {e.name: view for e, view in zip(self.layout.entries, views, strict=True)}

    def gradients(self, batch: BatchLike, weight: float = 1.0, add: bool = False) -> float:
        loss, gradients = self._loss_and_gradients(self.arrays, batch)
        for entry, view in zip(self.layout.entries, self.layout.views(self._gradient), strict=True):
            view[...] = gradients[entry.name] * weight + (view if add else 0.0)
        return float(loss)

    def apply(self) -> None:
        self._velocity *= self._momentum
        self._velocity += self._gradient
        self._vector -= self.learning_rate * self._velocity

    def reset_optimizer(self) -> None:
        self._velocity[:] = 0.0

    def scale_learning_rate(self, factor: float) -> None:
        self.learning_rate = self._base_rate * factor

    def evaluate(self, batch: BatchLike) -> dict[str, float]:
        loss, _ = self._loss_and_gradients(self.arrays, batch)
        sums = {"loss": float(loss) * batch.samples, "samples": float(batch.samples)}
        if self._count_correct is not None:
            sums["correct"] = float(self._count_correct(self.arrays, batch))
            sums["counted"] = float(batch.samples)
        return sums

    def describe_optimizer(self) -> str:
        settings = f"lr={self._base_rate}, momentum={self._momentum}"
        return f"SGD({settings}) with state {checksum(self._velocity):08x}"

    def optimizer_state(self) -> dict[str, Any]:
        return {"velocity": self._velocity.copy()}

    def accept_optimizer_state(self, state: dict[str, Any]) -> None:
        self._velocity[:] = state["velocity"]

    def save(self, path: Path) -> Path:
        arrays: dict[str, Any] = dict(self.arrays)
        np.savez(path.with_suffix(".npz"), **arrays)
        return path.with_suffix(".npz")
