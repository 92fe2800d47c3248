"""Bulk synchronous parallel: all replicas take the same step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.core.vectors import Vector
from paceline.errors import ConfigError
from paceline.rules.average import Average
from paceline.rules.checks import GRADIENT_WIRES, check_choice, check_whole
from paceline.rules.mean import take_mean, weigh
from paceline.rules.weights import WeightRule

DEFAULT_RANK = 4
"""Of powersgd, where none is set."""


@dataclass(frozen=True, kw_only=True)
class BSP:
    """Average the gradients of all workers in every step, weighted by samples.

    With n_i the samples behind worker i's gradient g_i:  g <- sum(n_i g_i) / sum(n_i),
    which is the gradient of the mean loss over all samples of the step, however unevenly they were
    dealt. Valiant 1990, doi:10.1145/79173.79181. With `what: weights` each worker takes its own
    step first (with its own momentum) and the weights are averaged, every `every` steps. With
    `wire: powersgd` gradients travel as products of matrices of this `rank`.

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
    exchange_kind: ClassVar[str] = "gradients"

    what: str = "gradients"
    every: int = 1
    wire: str = "float32"
    rank: int | None = None

    def __post_init__(self) -> None:
        check_choice("what", self.what, ("gradients", "weights"))
        check_whole("every", self.every, least=1)
        check_choice("wire", self.wire, GRADIENT_WIRES)
        if self.what == "gradients" and self.every != 1:
            raise ConfigError(
                f"rule.every is {self.every} and rule.what gradients, which are averaged in every "
                "step; set rule.what=weights, or accumulate for larger batches"
            )
        self._check_factors()

    def _check_factors(self) -> None:
        if self.rank is not None:
            check_whole("rank", self.rank, least=1)
        if self.wire == "powersgd" and self.what == "weights":
            raise ConfigError(
                "rule.wire is powersgd and rule.what weights; powersgd is for gradients: set "
                "rule.what=gradients, or another wire"
            )
        if self.wire != "powersgd" and self.rank is not None:
            raise ConfigError(
                f"rule.rank is {self.rank} and rule.wire {self.wire}, which has no rank; set "
                "rule.wire=powersgd, or leave rule.rank out"
            )

    @property
    def powersgd_rank(self) -> int | None:
        """The rank of the matrices that gradients travel as; None where they travel whole."""
        return (self.rank or DEFAULT_RANK) if self.wire == "powersgd" else None

    @property
    def resolve(self) -> BSP | WeightRule:
        """Averaging weights is what `average` does."""
        if self.what == "weights":
            return Average(every=self.every, wire=self.wire).resolve
        return self

    def contribute(self, gradient: Vector, weight: float, out: Vector) -> None:
        """Write what this worker gives to the sum; a full batch weighs 1."""
        weigh(gradient, weight, out)

    def merge(self, total: Vector, weight: float, out: Vector) -> None:
        """Turn the sum of all contributions, and of their weights, into the common gradient."""
        take_mean(total, weight, out)
