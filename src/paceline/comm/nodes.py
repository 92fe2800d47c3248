"""Who is on which node, and who owns which slice of a vector there."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from paceline.comm.world import World
from paceline.core.vectors import ALIGNMENT_BYTES


class Nodes:
    """The ranks of this node, and across the nodes those that own the same slice.

    A node's ranks divide a vector among them. On every node as many of them own a slice as the
    smallest node has ranks, so that each owner has one peer on each other node.
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
        self.beside: World | None = self.cross and self.cross.split(0)
        """The same ranks, for what another thread talks about meanwhile."""
        if self.cross is None:
            cross.free()

    def slice_of(self, size: int, itemsize: int, owner: int | None = None) -> slice:
        """The part of a vector that a rank of this node owns, by default this rank.

        It begins on a cache line; a rank that owns nothing gets an empty slice.
        """
        owner = self.local.rank if owner is None else owner
        if owner >= self.owners:
            return slice(size, size)
        line = ALIGNMENT_BYTES // itemsize
        edges = [size * at // self.owners // line * line for at in range(self.owners)] + [size]
        return slice(edges[owner], edges[owner + 1])


_known: WeakKeyDictionary[World, tuple[tuple[int, ...], Nodes]] = WeakKeyDictionary()


def nodes_of(world: World) -> Nodes:
    """The nodes of a world; found out once, by all ranks together."""
    node_ranks, nodes = _known.get(world, ((), None))
    if nodes is None or node_ranks != world.node_ranks:
        nodes = Nodes(world)
        _known[world] = (world.node_ranks, nodes)
    return nodes
