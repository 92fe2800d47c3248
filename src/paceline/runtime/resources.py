"""Threads of a rank, and how it waits on a crowded node."""

from __future__ import annotations

from paceline.cluster.cores import affinity, available_cores, threads_per_rank
from paceline.cluster.detect import Environment
from paceline.comm import World


def fair_threads(world: World) -> int:
    """This rank's threads: its cores, divided by the ranks of its node that may run on them.

    Ranks that a launcher has bound to cores of their own share them with nobody.
    """
    mine = affinity()
    masks = world.allgather_values((world.node, affinity()))
    rivals = sum(node == world.node and bool(mask & mine) for node, mask in masks)
    return threads_per_rank(max(1, rivals), available_cores())


def choose_poll_interval(environment: Environment, ranks: int, cores: int) -> float | None:
    """How ranks of a node wait: asleep if they outnumber its cores, else a waiting rank would keep
    another from computing. Open MPI's mpirun makes them yield, which is better still."""
    yields = environment.kind == "openmpi"
    return CROWDED_POLL_S if ranks > cores and not yields else None


def cores_of_node(world: World) -> int:
    """The cores that any rank of this node may use; each rank may be bound to its own."""
    everyone = world.allgather_values(affinity())
    together = set().union(*(everyone[rank] for rank in world.node_ranks))
    return available_cores(cpus=together)


CROWDED_POLL_S = 200e-6
"""Longest sleep of a rank that waits on a crowded node."""
