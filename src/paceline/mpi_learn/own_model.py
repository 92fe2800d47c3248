"""A model that trains itself, batch by batch, as a Replica: any object with `train_on_batch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.vectors import Layout, Vector
from paceline.errors import ReplicaError
from paceline.frameworks.replica import BatchLike
from paceline.frameworks.vector_replica import VectorReplica

METHODS = ("get_weights", "set_weights", "train_on_batch", "test_on_batch")
_ACCURACIES = ("acc", "accuracy")


def trains_itself(model: Any) -> bool:
    """Whether it has the methods that mpi_learn requires of a model."""
    return all(callable(getattr(model, name, None)) for name in METHODS)


class OwnModelReplica(VectorReplica):
    """What a call of `train_on_batch` subtracts from the weights is the gradient; applying it is
    subtracting it. So the model's own optimizer, whatever it is, does the training.

    Every rule works: downpour pushes what was subtracted, easgd and average use the weights. The
    optimizer's state stays inside the model: a resumed run begins with a fresh one.
    """

    def __init__(self, model: Any) -> None:
        weights = [np.asarray(array) for array in model.get_weights()]
        self.module = model
        self.learning_rate = 1.0
        described = ((f"weights.{i}", w.shape, str(w.dtype)) for i, w in enumerate(weights))
        super().__init__(Layout.of(described), weights)
        self._in_model = self._vector.copy()

    def _sync_model(self) -> None:
        """Give the model the weights of the vector."""
        if not np.array_equal(self._vector, self._in_model):
            entries, views = self.layout.entries, self.layout.views(self._vector)
            pairs = zip(entries, views, strict=True)
            self.module.set_weights([view.astype(entry.dtype) for entry, view in pairs])
            self._in_model[:] = self._vector

    def gradients(self, batch: BatchLike, weight: float = 1.0, add: bool = False) -> float:
        self._sync_model()
        loss = _values(self.module.train_on_batch(batch.inputs, batch.targets))[0]
        self.layout.gather(self.module.get_weights(), self._in_model)
        taken: Vector = self._vector - self._in_model
        taken *= weight
        if add:
            taken += self._gradient
        self._gradient[:] = taken
        return loss

    def apply(self) -> None:
        self._vector -= self.learning_rate * self._gradient

    def release(self) -> None:
        super().release()
        self._sync_model()

    def reset_optimizer(self) -> None:
        """It is the model's own."""

    def scale_learning_rate(self, factor: float) -> None:
        self.learning_rate = factor

    def evaluate(self, batch: BatchLike) -> dict[str, float]:
        self._sync_model()
        values = _values(self.module.test_on_batch(batch.inputs, batch.targets))
        sums = {"loss": values[0] * batch.samples, "samples": float(batch.samples)}
        for name, value in zip(_metrics_names(self.module), values, strict=False):
            if name in _ACCURACIES:
                sums |= {"correct": value * batch.samples, "counted": float(batch.samples)}
        return sums

    def describe_optimizer(self) -> str:
        return f"{type(self.module).__name__}.train_on_batch"

    def optimizer_state(self) -> dict[str, Any]:
        return {}

    def accept_optimizer_state(self, state: dict[str, Any]) -> None:
        """The model keeps it."""

    def save(self, path: Path) -> Path:
        views = zip(self.layout.entries, self.layout.views(self._vector), strict=True)
        arrays: dict[str, Any] = {entry.name: view for entry, view in views}
        np.savez(path.with_suffix(".npz"), **arrays)
        return path.with_suffix(".npz")


def _values(metrics: Any) -> list[float]:
    """The loss, then the metrics, from a number or a list of them."""
    values = np.asarray(metrics, np.float64).reshape(-1)
    if not values.size:
        raise ReplicaError("train_on_batch and test_on_batch return nothing, expected the loss")
    return [float(value) for value in values]


def _metrics_names(model: Any) -> list[str]:
    names = getattr(model, "metrics_names", ["loss"])
    return list(names() if callable(names) else names)
