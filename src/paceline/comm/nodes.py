"""Which ranks share a node, and which slice of a vector each of them owns."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from paceline.comm.allreduce.slices import owner_slice
from paceline.comm.world import World
from paceline.core.chunks import Span


class Nodes:
    """The ranks of this node, and the owners of the same slice on the other nodes.

    The ranks of a node divide a vector among themselves. Every node has as many owners as the
    smallest node has ranks, so that each owner has exactly one peer on every other node.
    """

    def __init__(self, world: World) -> None:
        lowest = world.allgather_values(min(world.node_ranks))
        self.count = len(set(lowest))
        self.local: World = world.split(min(world.node_ranks))
        self.owners = min(lowest.count(node) for node in set(lowest))
        """How many ranks of each node own a slice."""
        cross = world.split(self.local.rank)
        self.owns_slice = self.local.rank < self.owners
        self.cross: World | None = cross if self.owns_slice and self.count > 1 else None
        """The owners of this rank's slice, one on each node; None without a slice, or alone."""
        self.cross_duplicate: World | None = self.cross and self.cross.split(0)
        """The same ranks again: one thread may use it while another uses `cross`."""
        if self.cross is None:
            cross.free()

    def slice_of(self, size: int, itemsize: int, owner: int | None = None) -> Span:
        """The part of a vector that a rank of this node owns (default: this rank), maybe empty."""
        owner = self.local.rank if owner is None else owner
        return owner_slice(size, itemsize, self.owners, owner)


_known: WeakKeyDictionary[World, tuple[tuple[int, ...], Nodes]] = WeakKeyDictionary()


def nodes_of(world: World) -> Nodes:
    """The nodes of a world; collective when first called, then cached."""
    node_ranks, nodes = _known.get(world, ((), None))
    if nodes is None or node_ranks != world.node_ranks:
        nodes = Nodes(world)
        _known[world] = (world.node_ranks, nodes)
    return nodes
