"""How replicas meet: a rule's mathematics brought together with the ranks of a world."""

from __future__ import annotations

from typing import Any, Protocol

from paceline.comm import World
from paceline.observe import Stopwatch
from paceline.rules import Rule
from paceline.training.exchange.gradients import GradientExchange
from paceline.training.exchange.message import Meeting, Part
from paceline.training.exchange.weights import WeightExchange

__all__ = ["Exchange", "Meeting", "Part", "make_exchange"]


class Exchange(Protocol):
    """What a worker calls around each of its steps; each call may meet the other ranks, or not."""

    @property
    def bytes_sent(self) -> int:
        """Since the start, by this rank."""

    def before_step(self, part: Part, watch: Stopwatch) -> Meeting | None:
        """Gradients are there; the optimizer has not used them."""

    def after_step(self, part: Part, watch: Stopwatch) -> Meeting | None:
        """The optimizer has moved the weights. A rank without a further batch always meets."""

    def end_epoch(self, watch: Stopwatch) -> None:
        """A user's loop is through its data and goes on with the next epoch."""


_EXCHANGES: dict[str, Any] = {"gradients": GradientExchange, "weights": WeightExchange}


def make_exchange(world: World, replica: Any, rule: Rule, number: int = 0) -> Exchange:
    """The exchange of the kind that the rule needs."""
    exchange: Exchange = _EXCHANGES[rule.meets](world, replica, rule, number)
    return exchange
