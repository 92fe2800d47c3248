"""How many threads a rank may use beside its neighbours."""

from __future__ import annotations

from paceline.comm import World
from paceline.launch.cores import affinity, available_cores, threads_per_rank


def fair_threads(world: World) -> int:
    """Share this rank's cores with those ranks of its node that may run on them, too.

    Ranks that a launcher has bound to cores of their own share them with nobody.
    """
    mine = affinity()
    masks = world.share((world.node, affinity()))
    rivals = sum(node == world.node and bool(mask & mine) for node, mask in masks)
    return threads_per_rank(max(1, rivals), available_cores())
