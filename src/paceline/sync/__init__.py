"""How replicas meet: a rule's mathematics brought together with the ranks of a world."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from paceline.comm import World
from paceline.core.vectors import Vector
from paceline.observe import Stopwatch
from paceline.rules import BSP, Rule
from paceline.sync.asynchronous.base import AsynchronousExchange
from paceline.sync.asynchronous.centre import CentreExchange
from paceline.sync.asynchronous.gossip import GossipExchange
from paceline.sync.parameter_server.roles import assign_roles
from paceline.sync.settings import ExchangeContext
from paceline.sync.synchronous.gradients import GradientExchange
from paceline.sync.synchronous.message import Contribution, StepOutcome
from paceline.sync.synchronous.shared import can_share, make_shared
from paceline.sync.synchronous.weights import WeightExchange

__all__ = [
    "AsynchronousExchange",
    "Contribution",
    "Exchange",
    "ExchangeContext",
    "StepOutcome",
    "is_asynchronous",
    "load_common_weights",
    "make_exchange",
    "next_exchange_id",
    "with_common_weights",
]


class Exchange(Protocol):
    """What a worker calls around each of its steps; each call may meet the other ranks, or not."""

    asynchronous: bool
    """Whether workers go at their own pace: then nobody waits for others at the end of an epoch."""
    trains: bool
    """Whether this rank trains."""
    replicas_stay_equal: bool
    """Whether the replicas, and their optimizers, are the same after every step."""

    filters_nonfinite: bool
    """Whether it keeps gradients that are not finite out of the step by itself."""

    steps_optimizer: bool
    """Whether `before_step` also takes the optimizer's step; nobody else may then."""

    @property
    def bytes_sent(self) -> int:
        """Since the start, by this rank."""

    def last_backward(self, weight: float) -> None:
        """Gradients of this weight come now, the last ones before the step."""

    def before_step(self, part: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """Gradients are there; the optimizer has not used them."""

    def after_step(self, part: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """The optimizer has moved the weights. A rank without a further batch always meets."""

    def end_epoch(self, watch: Stopwatch) -> None:
        """A user's loop is through its data and goes on with the next epoch."""

    def run_deferred(self, watch: Stopwatch) -> StepOutcome | None:
        """After a pause: the meeting that it put off, if this rank had come for one."""

    def snapshot(self) -> dict[str, Any]:
        """What this rank's side must know when the run goes on; the arrays are copies."""

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what `snapshot` gave, in a world of as many ranks."""

    def restore_shared(self, saved: dict[str, Any]) -> None:
        """The same in a world of another number of ranks: what all of them had in common."""

    def close(self) -> None:
        """The last step is done; all ranks come here together."""

    def abandon(self) -> None:
        """This rank has failed: end what goes on beside its steps, and wait for nobody."""

    def centre(self) -> Vector | None:
        """The weights to validate and save, if they are not the replica's own."""


_EXCHANGES: dict[str, Any] = {"gradients": GradientExchange, "weights": WeightExchange}
_FREE: dict[str, Any] = {"centre": CentreExchange, "peers": GossipExchange}


_NO_FRAME = ExchangeContext()
_numbers: ContextVar[int] = ContextVar("numbers", default=0)


def next_exchange_id(world: World) -> int:
    """A number for the next exchange of this program, the same on all ranks of the world.

    Some of them may have had more exchanges than others, in a part of the world.
    """
    number = max(world.allgather_values(_numbers.get())) + 1
    _numbers.set(number)
    return number


def is_asynchronous(rule: Rule, world: World) -> bool:
    """Whether workers go at their own pace by this rule."""
    return _carried_out(rule, world).exchange_kind in _FREE


def _carried_out(rule: Rule, world: World) -> Any:
    """The rule that does what this one asks for in such a world."""
    carried_out: Any = getattr(rule, "resolve", rule)
    if world.size == 1 and carried_out.exchange_kind in _FREE and carried_out.trivial_alone:
        assign_roles(world, getattr(carried_out, "servers", None))  # somebody must train
        return BSP()
    return carried_out


def make_exchange(
    world: World, replica: Any, rule: Rule, frame: ExchangeContext = _NO_FRAME
) -> Exchange:
    """The exchange of the kind that the rule needs; the replicas are equal already."""
    carried_out = _carried_out(rule, world)
    exchange: Exchange
    if carried_out.exchange_kind in _FREE:
        exchange = _FREE[carried_out.exchange_kind](world, replica, carried_out, frame)
    elif frame.share and can_share(world, replica, carried_out):
        exchange = make_shared(world, replica, carried_out, frame)
    else:
        exchange = _EXCHANGES[carried_out.exchange_kind](world, replica, carried_out, frame.number)
    return exchange


def load_common_weights(replica: Any, exchange: Exchange) -> None:
    """Give the replica the weights of the rule's centre, where it has one."""
    centre = exchange.centre()
    if centre is not None:
        replica.parameters()[:] = centre
        replica.accept_parameters()


@contextmanager
def with_common_weights(replica: Any, exchange: Exchange) -> Iterator[None]:
    """Inside, the replica is the centre; afterwards it is where it was."""
    centre = exchange.centre()
    if centre is None:
        yield
        return
    own = replica.parameters().copy()
    replica.parameters()[:] = centre
    replica.accept_parameters()
    try:
        yield
    finally:
        replica.parameters()[:] = own
        replica.accept_parameters()
