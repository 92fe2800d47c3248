"""Weight averaging: replicas train alone and meet now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import ConfigError
from paceline.rules.mean import take_mean, weigh
from paceline.rules.period import Period
from paceline.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class Average:
    """Average the weights of all workers now and then, weighted by samples.

    With n_i the samples that worker i has trained on since the last meeting:
    x <- sum(n_i x_i) / sum(n_i). Once an epoch it is the classic distributed epoch; every H steps
    it is local SGD (Stich 2019, arXiv:1805.09767); every T seconds it lets slow workers do fewer
    steps; with `start_after` it is post-local SGD, which averages gradients in every step before
    (Lin et al. 2020, arXiv:1808.07217).

    >>> import numpy as np
    >>> rule, mine, sent = Average(every=8), np.array([4.0]), np.empty(1)
    >>> rule.contribute(mine, 1.0, out=sent)
    >>> rule.merge(sent + 0.5 * np.array([1.0]), 1.5, out=mine)
    >>> mine
    array([3.])
    """

    name: ClassVar[str] = "average"
    meets: ClassVar[str] = "weights"

    every: int | str = "epoch"
    """`epoch`, a number of steps, or a time as "10s"; the end of an epoch is a meeting anyhow."""
    start_after: int = 0
    """Steps before it in which gradients are averaged instead, as in bsp."""
    keep_momentum: bool = True
    """Whether a worker's optimizer keeps its state over a meeting, or starts anew."""

    def __post_init__(self) -> None:
        Period.parse(self.every)
        if not isinstance(self.start_after, int) or self.start_after < 0:
            raise ConfigError(f"rule.start_after is {self.start_after!r}, expected 0 or more steps")
        if not isinstance(self.keep_momentum, bool):
            raise ConfigError(
                f"rule.keep_momentum is {self.keep_momentum!r}, expected true or false"
            )

    @property
    def period(self) -> Period:
        return Period.parse(self.every)

    def contribute(self, replica: Vector, weight: float, out: Vector) -> None:
        """Write what this worker gives to the sum: its weights, times its samples."""
        weigh(replica, weight, out)

    def merge(self, total: Vector, weight: float, out: Vector) -> None:
        """Turn the sum of all contributions, and of their weights, into the common replica."""
        take_mean(total, weight, out)
