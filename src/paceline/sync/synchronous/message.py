"""One message per meeting: a vector, and before it all that the ranks must agree on."""

from __future__ import annotations

from typing import NamedTuple

from paceline.comm import World
from paceline.comm.allreduce.coded import VectorAllreduce
from paceline.core.vectors import ALIGNMENT_BYTES, Vector
from paceline.errors import WorldError
from paceline.observe import Stopwatch

_WEIGHT, _HIGH, _LOW, _MORE, _STOP, _SAVE, _QUIT, _SAVE_ONLY, _NUMBER, _FIELDS = range(10)
_SPLIT = 4096  # a float32 counts to 16 million; two of them count all samples of an epoch


class Contribution(NamedTuple):
    """What one rank brings to a step."""

    samples: float = 0
    """How many its gradient stands for; none if it takes part without a batch."""
    weight: float = 0.0
    """Their weight; a full batch has 1."""
    more: bool = False
    """It has a further batch in this epoch."""
    stop: bool = False
    """It asks to stop."""
    loss: float = 0.0
    """The sum over its samples, where it is known."""
    save: bool = False
    """It asks for a checkpoint after this step."""
    quit: bool = False
    """It was told to end: all are to save, and leave."""


class StepOutcome(NamedTuple):
    """What all ranks know after an exchange."""

    samples: int
    """Samples behind this exchange, over all ranks."""
    weight: float
    """Their weight."""
    more: bool
    """Some rank has a further batch in this epoch."""
    stop: bool
    """Some rank asks to stop."""
    save: bool = False
    """All are to save what they have now."""
    quit: bool = False
    """And then to leave."""
    rejected: bool = False
    """This rank's gradients were not finite, and were left out where they were not."""
    deferred: bool = False
    """Somebody came only to save: nothing was merged, and who came to merge meets again."""

    @property
    def wants_pause(self) -> bool:
        return self.save or self.quit


class StepMessage:
    """Memory for a vector and its head, and the way it goes.

    The head has weight, samples, whether there are more batches, whether to stop, to save, to quit,
    the number of the exchange, and as many flags as were asked for. So a meeting costs one
    all-reduce, and every rank leaves it knowing the same. A coded vector travels by itself after
    the head. A barrier before it all tells waiting for slower ranks from communication.
    """

    def __init__(self, world: World, vector: Vector, flags: int = 0, number: int = 0) -> None:
        """For vectors of this size and type.

        `number` tells exchanges of one program apart: the second model's, the third's.
        """
        self._world, self._number = world, number
        line = ALIGNMENT_BYTES // vector.dtype.itemsize
        head = -(-(_FIELDS + flags) // line) * line  # the vector starts on a cache line
        self._all = world.make_buffer(head + vector.size, vector.dtype)
        self._fields = self._all[:_FIELDS]
        self.flags: Vector = self._all[_FIELDS : _FIELDS + flags]
        self.vector: Vector = self._all[head:]
        self.bytes_sent = 0
        """By this rank, where an all-reduce sends no more than it must."""

    def sum_over_ranks(
        self,
        part: Contribution,
        watch: Stopwatch,
        size: int | None = None,
        coded: VectorAllreduce | None = None,
        save_only: bool = False,
    ) -> StepOutcome:
        """Sum flags and vector (or its first `size` elements) over all ranks, in place.

        A rank that is `early` came only to save: then the sum is worth nothing.
        """
        high, low = divmod(part.samples, _SPLIT)
        wishes = part.more, part.stop, part.save, part.quit, save_only
        self._fields[:] = part.weight, high, low, *wishes, self._number
        vector = self.vector[:size]
        watch.lap("compute")
        self._world.barrier()
        watch.lap("wait")
        head = self._all.size - self.vector.size
        self._sum(self._all[: head if coded else head + vector.size])
        meeting = self._read_head()
        if coded and meeting.deferred:
            return meeting
        if coded and meeting.weight:
            self.bytes_sent += coded.all_reduce(vector)
        elif coded:  # nobody gave anything: what rounding left behind waits for the next vector
            vector[:] = 0
        return meeting

    def close(self) -> None:
        """Give the memory back; who still has a view of it may keep that."""
        self._world.drop_buffer(self._all)

    def _sum(self, sent: Vector) -> None:
        self._world.all_reduce(sent)
        others = self._world.size - 1
        self.bytes_sent += 2 * others * sent.nbytes // self._world.size

    def _read_head(self) -> StepOutcome:
        weight, high, low, more, stop, save, quit, save_only, number = self._fields.tolist()
        if number != self._number * self._world.size:
            raise WorldError(
                "the ranks meet in different keep_pace blocks; let every rank take the same steps "
                "with each of its models"
            )
        return StepOutcome(
            int(high * _SPLIT + low),
            weight,
            more > 0,
            stop > 0,
            save=save > 0,
            quit=quit > 0,
            deferred=save_only > 0,
        )
