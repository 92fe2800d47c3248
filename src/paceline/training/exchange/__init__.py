"""How replicas meet: a rule's mathematics brought together with the ranks of a world."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from paceline.comm import World
from paceline.observe import Stopwatch
from paceline.rules import Rule
from paceline.training.exchange.gradients import GradientExchange
from paceline.training.exchange.message import Meeting, Part
from paceline.training.exchange.weights import WeightExchange
from paceline.vectors import Vector

__all__ = ["Exchange", "Meeting", "Part", "at_centre", "make_exchange", "show_centre"]


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

    def centre(self) -> Vector | None:
        """The weights to validate and save, if they are not the replica's own."""


_EXCHANGES: dict[str, Any] = {"gradients": GradientExchange, "weights": WeightExchange}


def make_exchange(world: World, replica: Any, rule: Rule, number: int = 0) -> Exchange:
    """The exchange of the kind that the rule needs; the replicas are equal already."""
    rule = getattr(rule, "carried_out_as", rule)
    exchange: Exchange = _EXCHANGES[rule.meets](world, replica, rule, number)
    return exchange


def show_centre(replica: Any, exchange: Exchange) -> None:
    """Give the replica the weights of the rule's centre, where it has one."""
    centre = exchange.centre()
    if centre is not None:
        replica.parameters()[:] = centre
        replica.accept_parameters()


@contextmanager
def at_centre(replica: Any, exchange: Exchange) -> Iterator[None]:
    """Inside, the replica is the centre; afterwards it is where it was."""
    if exchange.centre() is None:
        yield
        return
    own = replica.parameters().copy()
    show_centre(replica, exchange)
    try:
        yield
    finally:
        replica.parameters()[:] = own
        replica.accept_parameters()
