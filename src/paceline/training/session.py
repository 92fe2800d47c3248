"""What the loop of a user has under way: the models in pace, and the samples served to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from paceline.comm import World
    from paceline.training.balance import Balancer
    from paceline.training.pace import Pace


class Serving(NamedTuple):
    """How what is served counts in a step."""

    full: float = 1.0
    """The weight of a full batch: it counts as 1."""
    dealt: bool = False
    """Whether a step consists of micro-batches, as many as the rank gets to, maybe none."""
    balancer: Balancer | None = None
    """Who wants to know what steps took."""


class ServedSamples:
    """Samples that `shard` or `deal` has handed out, for all models that a loop trains.

    Only the batches of one of them count at a time: what a validation loop took before them did not
    go into the gradients.
    """

    def __init__(self) -> None:
        self.by: object = None
        self.turn = 0
        """Grows when another one begins to serve."""
        self.samples = 0
        self.weight = 0.0
        self.how = Serving()

    def begin(self, by: object, how: Serving) -> None:
        """From now on these are served."""
        if by is not self.by:
            self.by, self.turn, self.samples, self.weight = by, self.turn + 1, 0, 0.0
        self.how = how

    def end(self, by: object) -> None:
        """Nothing is served any more: what a loop does next is its own."""
        if by is self.by:
            self.begin(None, Serving())

    def add(self, samples: int, weight: float) -> None:
        """So many more have been handed out."""
        self.samples += samples
        self.weight += weight


class LoopSession(NamedTuple):
    """What `keep_pace` and `shard` know of each other."""

    paces: tuple[Pace, ...] = ()
    """Of the blocks around, the outermost first."""
    served: ServedSamples | None = None
    """None until a shard is iterated over."""


_session: ContextVar[LoopSession] = ContextVar("session", default=LoopSession())  # noqa: B039


def current_session() -> LoopSession:
    """That of this thread."""
    return _session.get()


def workers_of(world: World) -> tuple[int, ...]:
    """The ranks that share the samples: those that train in the block around, or all."""
    around = (pace.workers for pace in _session.get().paces if pace.world is world)
    return next(around, tuple(range(world.size)))


def begin_serving() -> ServedSamples:
    """Where a shard counts what it serves."""
    session = _session.get()
    served = session.served or ServedSamples()
    _session.set(session._replace(served=served))
    return served


@contextmanager
def in_session(pace: Pace) -> Iterator[None]:
    """Inside, shards serve this model, too."""
    around = _session.get().paces
    _session.set(_session.get()._replace(paces=(*around, pace)))
    try:
        yield
    finally:
        _session.set(_session.get()._replace(paces=around))
