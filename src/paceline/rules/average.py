"""Weight averaging: replicas train alone and are averaged now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.core.quantities import Period
from paceline.core.vectors import Vector
from paceline.rules.base import State, WeightRule
from paceline.rules.checks import check_flag, check_whole
from paceline.rules.mean import take_mean, weigh


@dataclass(frozen=True, kw_only=True)
class Average(WeightRule):
    """Average the weights of all workers now and then, weighted by samples.

    With n_i the samples that worker i has trained on since the last exchange:
    x <- sum(n_i x_i) / sum(n_i). Once an epoch it is the classic distributed epoch; every H steps
    it is local SGD (Stich 2019, arXiv:1805.09767); every T seconds it lets slow workers do fewer
    steps; with `start_after` it is post-local SGD, which averages gradients in every step before
    (Lin et al. 2020, arXiv:1808.07217).

    >>> import numpy as np
    >>> rule, mine, sent = Average(every=8), np.array([4.0]), np.empty(1)
    >>> rule.contribute(mine, {}, 1.0, out=sent)
    >>> rule.merge(sent + 0.5 * np.array([1.0]), 1.5, mine, {})
    >>> mine
    array([3.])
    """

    name: ClassVar[str] = "average"
    trivial_alone: ClassVar[bool] = True

    every: int | str = "epoch"
    start_after: int = 0
    keep_momentum: bool = True

    def __post_init__(self) -> None:
        Period.parse(self.every)
        check_whole("start_after", self.start_after, least=0)
        check_flag("keep_momentum", self.keep_momentum)

    def resolve(self, *, lossy: bool) -> WeightRule:
        """A lossy wire must round what changed, not the weights themselves."""
        if not lossy:
            return self
        return _AverageOfDifferences(
            every=self.every, start_after=self.start_after, keep_momentum=self.keep_momentum
        )

    def contribute(self, replica: Vector, state: State, weight: float, out: Vector) -> None:
        weigh(replica, weight, out)

    def merge(self, total: Vector, weight: float, replica: Vector, state: State) -> None:
        take_mean(total, weight, out=replica)


@dataclass(frozen=True, kw_only=True)
class _AverageOfDifferences(WeightRule):
    """The same mean by way of what changed:  c <- c + sum(n_i (x_i - c)) / sum(n_i),  x_i <- c.

    Here c is the weights that all workers had in common after the last exchange.
    """

    name: ClassVar[str] = Average.name
    trivial_alone: ClassVar[bool] = Average.trivial_alone

    every: int | str
    start_after: int
    keep_momentum: bool

    def init_state(self, replica: Vector) -> State:
        return {"centre": replica.copy()}

    def contribute(self, replica: Vector, state: State, weight: float, out: Vector) -> None:
        np.subtract(replica, state["centre"], out=out)
        weigh(out, weight, out)

    def merge(self, total: Vector, weight: float, replica: Vector, state: State) -> None:
        take_mean(total, weight, out=total)
        state["centre"] += total
        replica[:] = state["centre"]
