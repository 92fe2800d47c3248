"""DiLoCo: an outer optimizer on the averaged difference of what workers did alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.core.quantities import Period
from paceline.core.vectors import Vector
from paceline.rules.base import State, WeightRule
from paceline.rules.checks import check_number, check_whole
from paceline.rules.mean import take_mean, weigh


@dataclass(frozen=True, kw_only=True)
class DiLoCo(WeightRule):
    """Let workers train alone, then move a common centre by Nesterov SGD on what they found.

    With c the centre, and the outer gradient d = sum(n_i (c - x_i)) / sum(n_i):
    v <- m v + d,  c <- c - lr (d + m v),  x_i <- c.
    Douillard et al. 2023, arXiv:2311.08105. With `fragments`, each exchange moves the next part
    of the vector alone, so that less is sent at a time (streaming; Douillard et al. 2025,
    arXiv:2501.18512).

    >>> rule = DiLoCo(outer_lr=1.0, outer_momentum=0.0)  # plain averaging
    >>> x = np.array([4.0])
    >>> state = rule.init_state(np.array([6.0]))
    >>> rule.merge(np.array([2.0 + 4.0]), 2.0, x, state)  # one worker at 4, one at 2
    >>> x, state["centre"]
    (array([3.]), array([3.]))
    """

    name: ClassVar[str] = "diloco"

    every: int | str = 500
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    fragments: int = 1

    def __post_init__(self) -> None:
        Period.parse(self.every)
        check_number("outer_lr", self.outer_lr, above=0, below=None)
        check_number("outer_momentum", self.outer_momentum, above=None, below=1)
        check_whole("fragments", self.fragments, least=1)

    def init_state(self, replica: Vector) -> State:
        return {"centre": replica.copy(), "velocity": np.zeros_like(replica)}

    def contribute(self, replica: Vector, state: State, weight: float, out: Vector) -> None:
        np.subtract(state["centre"], replica, out=out)
        weigh(out, weight, out)

    def merge(self, total: Vector, weight: float, replica: Vector, state: State) -> None:
        take_mean(total, weight, out=total)
        centre, velocity = state["centre"], state["velocity"]
        velocity *= self.outer_momentum
        velocity += total
        centre -= self.outer_lr * (total + self.outer_momentum * velocity)
        replica[:] = centre

    def centre(self, state: State) -> Vector:
        return state["centre"]
