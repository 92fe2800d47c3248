"""Bulk synchronous parallel: all replicas take the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.core.vectors import Vector
from paceline.rules.base import GradientRule
from paceline.rules.mean import add_up, take_mean, weigh


@dataclass(frozen=True, kw_only=True)
class BSP(GradientRule):
    """Average the gradients of all workers in every step, weighted by samples.

    With n_i the samples behind worker i's gradient g_i:  g <- sum(n_i g_i) / sum(n_i),
    which is the gradient of the mean loss over all samples of the step, however unevenly they are
    distributed. Valiant 1990, doi:10.1145/79173.79181.

    >>> import numpy as np
    >>> rule, a, b = BSP(), np.array([4.0]), np.array([1.0])
    >>> rule.contribute(a, 1.0, out=a)
    >>> rule.contribute(b, 0.5, out=b)  # b stands for half as many samples
    >>> total = a + b
    >>> rule.merge(total, 1.5, out=total)
    >>> total
    array([3.])
    """

    name: ClassVar[str] = "bsp"

    def contribute(self, gradient: Vector, weight: float, out: Vector) -> None:
        weigh(gradient, weight, out)

    def accumulate(
        self, gradients: Sequence[Vector], weights: Sequence[float], out: Vector
    ) -> None:
        add_up(gradients, weights, out)

    def merge(self, total: Vector, weight: float, out: Vector) -> None:
        take_mean(total, weight, out)
