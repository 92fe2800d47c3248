"""An all-reduce whose messages are coded: fewer bytes, and the same sum on every rank."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from paceline.comm.nodes import Nodes, nodes_of
from paceline.comm.wire import Bytes, Codec, Feedback, make_codec
from paceline.comm.world import World
from paceline.vectors import Vector, aligned_zeros


class VectorSum(Protocol):
    """A way to sum vectors of one size."""

    def all_reduce(self, vector: Vector) -> int:
        """Overwrite every rank's vector by the sum; the bytes that this rank sent."""


class CodedSum:
    """Sums vectors of one size over all ranks, each message in the codec's format.

    The vector is cut in one slice per rank. Every rank encodes its slices and sends each to its
    owner; the owner adds them up in rank order, encodes the sum, and sends that to all. Every rank,
    the owner too, takes the result from these bytes: so all hold the same, bit for bit. What
    rounding loses goes into the next sum, both for what a rank gives and for the sum it owns.
    """

    def __init__(self, world: World, codec: Codec, size: int, dtype: npt.DTypeLike) -> None:
        self._world, self._codec = world, codec
        share = -(-size // world.size)
        share += -share % 4  # so that the scales of a format lie on whole words
        edges = [min(size, share * rank) for rank in range(world.size + 1)]
        self._parts = [slice(*pair) for pair in pairwise(edges)]
        self._slot = codec.nbytes(share)
        self._out: Bytes = aligned_zeros(world.size * self._slot, np.uint8)
        self._in: Bytes = aligned_zeros(world.size * self._slot, np.uint8)
        own = self._parts[world.rank]
        self.given = Feedback(codec, size, dtype)
        """What this rank has still to give."""
        self.summed = Feedback(codec, own.stop - own.start, dtype)
        """What the sums of this rank's slice have still to get."""

    def all_reduce(self, vector: Vector) -> int:
        """Overwrite every rank's vector by the sum; the bytes that went to other ranks."""
        world, codec = self._world, self._codec
        if world.size == 1:
            return 0
        for rank, part in enumerate(self._parts):
            self.given.encode(vector[part], self._of(rank, self._out), at=part.start)
        world.all_to_all(self._out, self._in)
        own = vector[self._parts[world.rank]]
        codec.decode(self._of(0, self._in), own)
        for rank in range(1, world.size):
            codec.add(self._of(rank, self._in), own)
        mine = self._of(0, self._out)
        self.summed.encode(own, mine)
        world.all_gather(mine, self._in)
        for rank, part in enumerate(self._parts):
            codec.decode(self._of(rank, self._in), vector[part])
        return 2 * (world.size - 1) * self._slot

    def _of(self, rank: int, data: Bytes) -> Bytes:
        return data[rank * self._slot : (rank + 1) * self._slot]


class FarSum:
    """Sums vectors over all ranks: as they are inside a node, coded between nodes.

    Each rank of a node takes its slice to the other nodes.
    """

    def __init__(self, nodes: Nodes, codec: Codec, size: int, dtype: npt.DTypeLike) -> None:
        self._nodes = nodes
        itemsize = np.dtype(dtype).itemsize
        self._slices = [nodes.slice_of(size, itemsize, owner) for owner in range(nodes.owners)]
        self.far: CodedSum | None = None
        """Of this rank's slice, if it owns one."""
        if nodes.across is not None:
            own = self._slices[nodes.neighbours.rank]
            self.far = CodedSum(nodes.across, codec, own.stop - own.start, dtype)

    def all_reduce(self, vector: Vector) -> int:
        """Overwrite every rank's vector by the sum; the bytes that went to other nodes."""
        neighbours, sent = self._nodes.neighbours, 0
        neighbours.all_reduce(vector)
        if self.far is not None:
            sent = self.far.all_reduce(vector[self._slices[neighbours.rank]])
        if neighbours.size > 1:
            for owner, piece in enumerate(self._slices):
                neighbours.broadcast(vector[piece], root=owner)
        return sent


def make_sums(
    world: World, wire: str, sizes: Iterable[int], dtype: npt.DTypeLike
) -> list[FarSum] | None:
    """A sum for each part of a vector; None where nothing is coded: in float32, or on one node."""
    codec = make_codec(wire, dtype) if world.size > 1 else None
    if codec is None:
        return None
    nodes = nodes_of(world)
    return [FarSum(nodes, codec, size, dtype) for size in sizes] if nodes.count > 1 else None
