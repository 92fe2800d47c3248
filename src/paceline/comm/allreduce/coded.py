"""An all-reduce whose messages are coded: fewer bytes, and the same sum on every rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from paceline.comm.allreduce.pipelined import PipelinedAllreduce
from paceline.comm.nodes import Nodes, nodes_of
from paceline.comm.wire import Bytes, Codec, ErrorFeedback, make_codec
from paceline.comm.world import World
from paceline.core.vectors import Vector


class VectorAllreduce(Protocol):
    """A way to sum vectors of one size."""

    @property
    def residuals(self) -> dict[str, Vector]:
        """What goes over from one sum to the next: live arrays, to be saved and written back."""

    def all_reduce(self, vector: Vector) -> int:
        """Overwrite every rank's vector by the sum; the bytes that this rank sent."""


class CompressedAllreduce:
    """Sums vectors of one size over all ranks, each message in the codec's format.

    Every rank takes the sums, its own one too, from what was sent: so all hold the same, bit for
    bit. What rounding loses goes into the next sum, both for what a rank gives and for the sum of
    the slice that it owns.
    """

    def __init__(self, world: World, codec: Codec, size: int, dtype: npt.DTypeLike) -> None:
        self._codec = codec
        self._pipe = PipelinedAllreduce(world, dtype, self)
        own = self._pipe.slices(size)[world.rank]
        self._own_start = own.start
        self.given = ErrorFeedback(codec, size, dtype)
        """What this rank has still to give."""
        self.summed = ErrorFeedback(codec, own.stop - own.start, dtype)
        """What the sums of this rank's slice have still to get."""

    @property
    def residuals(self) -> dict[str, Vector]:
        return {"given": self.given.error, "summed": self.summed.error}

    def all_reduce(self, vector: Vector) -> int:
        """Overwrite every rank's vector by the sum; the bytes that went to other ranks."""
        return self._pipe.all_reduce(vector)

    def nbytes(self, size: int) -> int:
        return self._codec.nbytes(size)

    def encode_part(self, part: Vector, at: int, room: Bytes) -> Bytes:
        self.given.encode(part, room, at)
        return room[: self._codec.nbytes(part.size)]

    def encode_sum(self, own: Vector, at: int, room: Bytes) -> Bytes:
        self.summed.encode(own, room, at - self._own_start)
        message = room[: self._codec.nbytes(own.size)]
        self._codec.decode(message, own)
        return message

    def read(self, message: Bytes, out: Vector) -> None:
        self._codec.decode(message, out)

    def add(self, message: Bytes, out: Vector) -> None:
        self._codec.add(message, out)


class InterNodeAllreduce:
    """Sums vectors over all ranks: as they are inside a node, coded between nodes.

    Each rank of a node takes its slice to the other nodes.
    """

    def __init__(self, nodes: Nodes, codec: Codec, size: int, dtype: npt.DTypeLike) -> None:
        self._nodes = nodes
        itemsize = np.dtype(dtype).itemsize
        self._slices = [nodes.slice_of(size, itemsize, owner) for owner in range(nodes.owners)]
        self.far: CompressedAllreduce | None = None
        """Of this rank's slice, if it owns one."""
        if nodes.cross is not None:
            own = self._slices[nodes.local.rank]
            self.far = CompressedAllreduce(nodes.cross, codec, own.stop - own.start, dtype)

    @property
    def residuals(self) -> dict[str, Vector]:
        return self.far.residuals if self.far is not None else {}

    def all_reduce(self, vector: Vector) -> int:
        """Overwrite every rank's vector by the sum; the bytes that went to other nodes."""
        local, sent = self._nodes.local, 0
        local.all_reduce(vector)
        if self.far is not None:
            sent = self.far.all_reduce(vector[self._slices[local.rank]])
        if local.size > 1:
            for owner, piece in enumerate(self._slices):
                local.broadcast(vector[piece], root=owner)
        return sent


def make_sums(
    world: World, wire: str, sizes: Iterable[int], dtype: npt.DTypeLike
) -> list[InterNodeAllreduce] | None:
    """A sum for each part of a vector; None where nothing is coded: in float32, or on one node."""
    codec = make_codec(wire, dtype) if world.size > 1 else None
    if codec is None:
        return None
    nodes = nodes_of(world)
    return (
        [InterNodeAllreduce(nodes, codec, size, dtype) for size in sizes]
        if nodes.count > 1
        else None
    )
