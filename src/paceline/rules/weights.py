"""What rules that exchange weights have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from paceline.core.quantities import Period
from paceline.core.vectors import Vector

State = dict[str, Vector]
"""Vectors that a rule keeps from meeting to meeting, the same on every worker."""


class WeightRule(ABC):
    """Workers train alone and meet when the period is over, and at the end of every epoch."""

    exchange_kind: ClassVar[str] = "weights"
    weighted_by_samples: ClassVar[bool] = True
    """Whether a worker counts by its samples since the last meeting; otherwise each counts as 1."""
    every: int | str
    """`epoch`, a number of steps, or a time as "10s"."""
    start_after: int = 0
    """Steps at first in which gradients are averaged instead, as in bsp."""
    keep_momentum: bool = True
    """Whether a worker's optimizer keeps its state over a meeting."""
    fragments: int = 1
    """Parts of the vector, of which each meeting exchanges the next."""
    wire: str = "float32"
    """The format in which vectors travel."""
    trivial_alone: ClassVar[bool] = False
    """Whether a single rank with this rule simply trains."""

    @property
    def period(self) -> Period:
        return Period.parse(self.every)

    def init_state(self, replica: Vector) -> State:
        """The state before the first meeting, from weights that all workers have in common."""
        return {}

    @abstractmethod
    def contribute(self, replica: Vector, state: State, weight: float, out: Vector) -> None:
        """Write what this worker gives to the sum."""

    @abstractmethod
    def merge(self, total: Vector, weight: float, replica: Vector, state: State) -> None:
        """Move replica and state, in place, by the sum of contributions and of their weights."""

    def centre(self, state: State) -> Vector | None:
        """The weights to validate and save, if they are not the replica's own."""
        return None
