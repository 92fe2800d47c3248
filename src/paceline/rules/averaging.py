"""Weight averaging: replicas train alone and meet now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.rules.mean import take_mean, weigh
from paceline.rules.period import Period
from paceline.rules.settings import check_flag, check_whole
from paceline.rules.weights import State, WeightRule
from paceline.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class Average(WeightRule):
    """Average the weights of all workers now and then, weighted by samples.

    With n_i the samples that worker i has trained on since the last meeting:
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

    every: int | str = "epoch"
    start_after: int = 0
    keep_momentum: bool = True

    def __post_init__(self) -> None:
        Period.parse(self.every)
        check_whole("start_after", self.start_after, least=0)
        check_flag("keep_momentum", self.keep_momentum)

    def contribute(self, replica: Vector, state: State, weight: float, out: Vector) -> None:
        weigh(replica, weight, out)

    def merge(self, total: Vector, weight: float, replica: Vector, state: State) -> None:
        take_mean(total, weight, out=replica)
