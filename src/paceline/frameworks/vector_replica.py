"""Base for Replicas that keep parameters and gradients in two flat numpy vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.core.vectors import Layout, Vector, is_finite


class VectorReplica:
    """Half of a Replica. A framework adds `gradients`, `apply`, `evaluate`, its optimizer's state
    and `save`; one with its own memory fills it from `_vector` in `rehome`.
    """

    def __init__(self, layout: Layout, arrays: Sequence[npt.ArrayLike]) -> None:
        self.layout = layout
        self._vector = layout.gather(arrays, layout.empty_vector())
        self._present = np.ones(len(layout.entries), layout.dtype)
        self._buffer_vector: Vector = np.empty(0, layout.dtype)
        self._constant_bytes: Vector = np.empty(0, np.uint8)
        self.rehome(layout.empty_vector(), layout.empty_vector())

    def rehome(self, parameters: Vector, gradients: Vector) -> None:
        parameters[:] = self._vector
        self._vector, self._gradient = parameters, gradients

    def release(self) -> None:
        self.rehome(self.layout.empty_vector(), self.layout.empty_vector())

    def parameters(self) -> Vector:
        return self._vector

    def accept_parameters(self) -> None:
        """The vector is what the model computes with: nothing to do."""

    def clear_gradients(self) -> None:
        self._gradient[:] = 0.0

    def gradients_are_finite(self) -> bool:
        return is_finite(self._gradient)

    def collect_gradients(self) -> tuple[Vector, Vector]:
        return self._gradient, self._present

    def accept_gradients(self, present: Vector) -> None:
        """The gradient vector is what `apply` uses: nothing to do."""

    def clip(self, max_norm: float) -> float:
        norm = float(np.linalg.norm(self._gradient))
        if norm > max_norm:
            self._gradient *= max_norm / norm
        return norm

    def buffers(self) -> Vector:
        return self._buffer_vector

    def accept_buffers(self) -> None:
        """There are none."""

    def constants(self) -> Vector:
        return self._constant_bytes

    def accept_constants(self) -> None:
        """There are none."""
