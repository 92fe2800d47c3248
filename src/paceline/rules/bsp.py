"""Bulk synchronous parallel: all replicas take the same step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class BSP:
    """Average the gradients of all workers in every step, weighted by samples.

    With n_i the samples behind worker i's gradient g_i:  g <- sum(n_i g_i) / sum(n_i),
    which is the gradient of the mean loss over all samples of the step, however unevenly they were
    dealt. Valiant 1990, doi:10.1145/79173.79181.

    >>> import numpy as np
    >>> rule, a, b = BSP(), np.array([4.0]), np.array([1.0])
    >>> rule.contribute(a, 1.0), rule.contribute(b, 0.5)  # b stands for half as many samples
    (None, None)
    >>> total = a + b
    >>> rule.merge(total, 1.5)
    >>> total
    array([3.])
    """

    name: ClassVar[str] = "bsp"

    def contribute(self, gradient: Vector, weight: float) -> None:
        """Weigh this worker's gradient, in place; a full batch weighs 1 and costs nothing."""
        if weight != 1.0:
            gradient *= weight

    def merge(self, total: Vector, weight: float) -> None:
        """Turn the sum of all contributions into their mean, in place."""
        if weight not in (0.0, 1.0):
            total *= 1.0 / weight
