"""Memory that the ranks of a node share when they train on common parameters."""

from __future__ import annotations

import numpy as np

from paceline.comm import World
from paceline.core.vectors import ALIGNMENT_BYTES, Layout, Vector
from paceline.sync.interface import StepHead

SQUARES, REJECTED, FIELDS = range(StepHead.SIZE, StepHead.SIZE + 3)
"""What follows a `StepHead` in a rank's head: the squared norm of its slices, whether its gradient
was rejected; then, for each parameter, whether there is a gradient, and for each rank its speed."""

_WATCHED = 256


class SharedBuffers:
    """The node's memory: parameters, optimizer state, and each rank's gradients and head."""

    def __init__(
        self, world: World, layout: Layout, ranks: int, slots: list[str], keeps_sums: bool = False
    ) -> None:
        """`keeps_sums`: the sums between nodes lie here, too."""
        self.present = slice(FIELDS, FIELDS + len(layout.entries))
        """Where a head says which parameters have a gradient."""
        self.speeds = slice(self.present.stop, self.present.stop + world.size)
        """Where it says how fast the rank is, each at its own place."""
        self.taken = slice(self.speeds.stop, self.speeds.stop + world.size * world.elastic)
        """Where it says how many batches of the epoch the rank has had, the same way."""
        line = ALIGNMENT_BYTES // layout.dtype.itemsize
        stride = -(-layout.size // line) * line
        fields = -(-self.taken.stop // 8) * 8
        heads, ready = (ranks + 1) * fields * 8, ranks * ALIGNMENT_BYTES
        vectors = 1 + len(slots) + ranks + keeps_sums
        nbytes = heads + ready + vectors * stride * layout.dtype.itemsize
        self._memory = world.node_memory(nbytes, locks=0)
        rows = self._memory.bytes[:heads].view(np.float64).reshape(ranks + 1, fields)
        rows = rows[:, : self.taken.stop]
        self.heads: Vector = rows[:ranks]
        self.head_sum: Vector = rows[ranks]
        """The sum of all heads, for ranks that take no part in summing."""
        self.ready = self._memory.bytes[heads : heads + ready].view(np.int64).reshape(ranks, -1)
        """How many buckets each rank has handed in."""
        rest = self._memory.bytes[heads + ready :].view(layout.dtype).reshape(vectors, stride)
        rest = rest[:, : layout.size]
        self.parameters: Vector = rest[0]
        self.slots = dict(zip(slots, rest[1:], strict=False))
        first = 1 + len(slots)
        self.gradients: Vector = rest[first : first + ranks]
        self.sums: Vector | None = rest[-1] if keeps_sums else None

    def close(self) -> None:
        """Give the memory back; views of it stay valid."""
        del self.heads, self.head_sum, self.ready, self.gradients, self.slots, self.sums
        self._memory.close()


def spread_spots(layout: Layout) -> Vector:
    """Some places of the vector, in as many parameters as possible."""
    entries = layout.entries[:: max(1, len(layout.entries) * 3 // _WATCHED)]
    spots = {entry.offset + at for entry in entries if entry.size for at in _spread(entry.size)}
    return np.array(sorted(spots), np.intp)


def _spread(size: int) -> tuple[int, ...]:
    return (0, size // 2, size - 1)
