"""What the loop of a user has under way: the models in pace, and the samples served to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import ReferenceType, ref

from paceline.errors import TrainingError

if TYPE_CHECKING:
    from paceline.comm import World
    from paceline.training.balance import Balancer
    from paceline.training.own_loop.pace import Pace


class Serving(NamedTuple):
    """How what is served counts in a step."""

    full: float = 1.0
    """The weight of a full batch: it counts as 1."""
    dealt: bool = False
    """Whether a step consists of micro-batches, as many as the rank gets to, maybe none."""
    balancer: Balancer | None = None
    """Who wants to know what steps took."""


class Place:
    """How far an epoch is."""

    def __init__(self, taken: int = 0) -> None:
        self.taken = taken
        """Batches of the epoch that is under way, or that is to be gone on with."""
        self._under_way = False
        self.is_lasting = True
        """Whether it can be gone on with: not after ranks were lost in the epoch."""

    def begin(self) -> int:
        """An iteration begins: how many batches it leaves out."""
        skipped, self._under_way = 0 if self._under_way else self.taken, True
        self.taken = skipped
        return skipped

    def end(self) -> None:
        self.taken, self._under_way, self.is_lasting = 0, False, True

    def describe(self, next_epoch: int) -> dict[str, int]:
        """For a checkpoint."""
        if not self.is_lasting:
            raise TrainingError(
                "pace.save came within an epoch in which ranks were lost, whose samples were dealt "
                "anew; save at the end of the epoch"
            )
        return {"epoch": next_epoch - self._under_way, "taken": self.taken}


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


class Sharded(Protocol):
    """What `shard` returns, as others see it."""

    def describe(self) -> dict[str, object]:
        """What must be the same on all ranks, for each of them to get its own part."""

    def position(self) -> dict[str, int]:
        """Which epoch it is in, and how many of its batches have been taken."""

    def go_on_at(self, epoch: int, taken: int) -> None:
        """Begin there with the next iteration."""


_shards: ContextVar[tuple[ReferenceType[Sharded], ...]] = ContextVar("shards", default=())


def note_shard(shard: Sharded) -> None:
    """One more, for the blocks to come."""
    alive = tuple(each for each in _shards.get() if each() is not None)
    _shards.set((*alive, ref(shard)))


def shards_of(world: World) -> list[Sharded]:
    """Those of the world that are alive, in the order in which they were made."""
    found = (each() for each in _shards.get())
    return [shard for shard in found if shard is not None and getattr(shard, "world", 0) is world]


_session: ContextVar[LoopSession] = ContextVar("session", default=LoopSession())  # noqa: B039


def current_session() -> LoopSession:
    """That of this thread."""
    return _session.get()


def workers_of(world: World) -> tuple[int, ...]:
    """The ranks that share the samples: those that train in the block around, or all."""
    around = (pace.workers for pace in _session.get().paces if pace.world is world)
    return next(around, tuple(range(world.size)))


def elastic_pace(world: World) -> Pace | None:
    """The model around that goes on without ranks that are lost."""
    around = (pace for pace in _session.get().paces if pace.world is world)
    return next((pace for pace in around if pace.is_elastic), None)


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
