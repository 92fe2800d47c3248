"""An all-reduce with compressed messages: fewer bytes, and the same sum on every rank."""

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
        """State carried from one sum to the next: live arrays, to save and to overwrite."""

    def all_reduce(self, vector: Vector) -> int:
        """Overwrite every rank's vector with the sum; return the bytes that this rank sent."""

    def close(self) -> None:
        """Give the memory back, if it holds any."""


class CompressedAllreduce:
    """Sums vectors of one size over all ranks, each message in the codec's format.

    Every rank decodes the sums from the messages, its own sum too, so all ranks hold the same bits.
    What rounding loses is added to the next sum, both for what a rank contributes and for the sum
    of the slice that it owns.
    """

    def __init__(self, world: World, codec: Codec, size: int, dtype: npt.DTypeLike) -> None:
        self._codec = codec
        self._pipe = PipelinedAllreduce(world, dtype, self)
        own = self._pipe.slices(size)[world.rank]
        self._own_start = own.start
        self.given = ErrorFeedback(codec, size, dtype)
        """Rounding errors of what this rank contributes."""
        self.summed = ErrorFeedback(codec, own.stop - own.start, dtype)
        """Rounding errors of the sums of this rank's slice."""

    @property
    def residuals(self) -> dict[str, Vector]:
        return {"given": self.given.error, "summed": self.summed.error}

    def all_reduce(self, vector: Vector) -> int:
        """Overwrite every rank's vector with the sum; return the bytes sent to other ranks."""
        return self._pipe.all_reduce(vector)

    def nbytes(self, size: int) -> int:
        return self._codec.nbytes(size)

    def encode_part(self, part: Vector, at: int, scratch: Bytes) -> Bytes:
        self.given.encode(part, scratch, at)
        return scratch[: self._codec.nbytes(part.size)]

    def encode_sum(self, own: Vector, at: int, scratch: Bytes) -> Bytes:
        self.summed.encode(own, scratch, at - self._own_start)
        message = scratch[: self._codec.nbytes(own.size)]
        self._codec.decode(message, own)
        return message

    def read(self, message: Bytes, out: Vector) -> None:
        self._codec.decode(message, out)

    def add(self, message: Bytes, out: Vector) -> None:
        self._codec.add(message, out)


class InterNodeAllreduce:
    """Sums vectors over all ranks: uncompressed inside a node, compressed between nodes.

    Each owner exchanges its slice with its peers on the other nodes.
    """

    def __init__(self, nodes: Nodes, codec: Codec, size: int, dtype: npt.DTypeLike) -> None:
        self._nodes = nodes
        itemsize = np.dtype(dtype).itemsize
        self._slices = [nodes.slice_of(size, itemsize, owner) for owner in range(nodes.owners)]
        self.far: CompressedAllreduce | None = None
        """Sums this rank's slice between nodes, if it owns one."""
        if nodes.cross is not None:
            own = self._slices[nodes.local.rank]
            self.far = CompressedAllreduce(nodes.cross, codec, own.stop - own.start, dtype)

    @property
    def residuals(self) -> dict[str, Vector]:
        return self.far.residuals if self.far is not None else {}

    def all_reduce(self, vector: Vector) -> int:
        """Overwrite every rank's vector with the sum; return the bytes sent to other nodes."""
        local, sent = self._nodes.local, 0
        local.all_reduce(vector)
        if self.far is not None:
            sent = self.far.all_reduce(vector[self._slices[local.rank]])
        if local.size > 1:
            for owner, piece in enumerate(self._slices):
                local.broadcast(vector[piece], root=owner)
        return sent

    def close(self) -> None:
        """It holds no memory of the world's."""


def make_sums(
    world: World, wire: str, sizes: Iterable[int], dtype: npt.DTypeLike
) -> list[InterNodeAllreduce] | None:
    """An all-reduce for each part of a vector; None if nothing is compressed: in float32, or on one
    node."""
    codec = make_codec(wire, dtype) if world.size > 1 else None
    if codec is None:
        return None
    nodes = nodes_of(world)
    return (
        [InterNodeAllreduce(nodes, codec, size, dtype) for size in sizes]
        if nodes.count > 1
        else None
    )
