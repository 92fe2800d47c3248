"""One message per meeting: a vector, and a short tail with all that the ranks must agree on."""

from __future__ import annotations

from typing import NamedTuple

from paceline.comm import World
from paceline.errors import WorldError
from paceline.observe import Stopwatch
from paceline.vectors import Layout, Vector, aligned_zeros

_WEIGHT, _HIGH, _LOW, _MORE, _STOP, _NUMBER, _FIELDS = range(7)
_SPLIT = 4096  # a float32 counts to 16 million; two of them count all samples of an epoch


class Part(NamedTuple):
    """What one rank brings to a step."""

    samples: float = 0
    """How many its gradient stands for; none if it takes part without a batch."""
    weight: float = 0.0
    """Their weight; a full batch has 1."""
    more: bool = False
    """It has a further batch in this epoch."""
    stop: bool = False
    """It asks to stop."""


class Meeting(NamedTuple):
    """What all ranks know after an exchange."""

    samples: int
    """Samples behind this exchange, over all ranks."""
    weight: float
    """Their weight."""
    more: bool
    """Some rank has a further batch in this epoch."""
    stop: bool
    """Some rank asks to stop."""


class Message:
    """Memory for the vector and its tail, and the way it goes.

    The tail has weight, samples, whether there are more batches, whether to stop, the number of the
    exchange, and for each parameter whether it got a gradient. So a meeting costs one all-reduce,
    and every rank leaves it knowing the same. A barrier before it tells waiting for slower ranks
    from communication.
    """

    def __init__(self, world: World, layout: Layout, number: int) -> None:
        """`number` tells exchanges of one program apart: the second model's, the third's."""
        self._world, self._number = world, number
        self._all = aligned_zeros(layout.size + _FIELDS + len(layout.entries), layout.dtype)
        self.vector: Vector = self._all[: layout.size]
        self._tail = self._all[layout.size : layout.size + _FIELDS]
        self.present: Vector = self._all[layout.size + _FIELDS :]
        self.bytes_sent = 0

    def travel(self, part: Part, watch: Stopwatch) -> Meeting:
        """Sum the vector (and `present`) over all ranks, in place."""
        high, low = divmod(part.samples, _SPLIT)
        self._tail[:] = part.weight, high, low, part.more, part.stop, self._number
        watch.lap("compute")
        self._world.barrier()
        watch.lap("wait")
        self._world.all_reduce(self._all)
        self.bytes_sent += self._all.nbytes
        weight, high, low, more, stop, number = self._tail.tolist()
        if number != self._number * self._world.size:
            raise WorldError(
                "the ranks meet in different keep_pace blocks; let every rank take the same steps "
                "with each of its models"
            )
        return Meeting(int(high * _SPLIT + low), weight, more > 0, stop > 0)
