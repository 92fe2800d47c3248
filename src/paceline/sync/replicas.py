"""Replicas start equal, and what of their state is made equal again later."""

from __future__ import annotations

import numpy as np

from paceline.checkpoint.tree import join, split
from paceline.comm import World
from paceline.core.trees import Tree
from paceline.core.vectors import Layout, Vector, checksum, differences, is_finite
from paceline.errors import ReplicaError, TrainingError
from paceline.frameworks.replica import VectorModel

_SHOWN = 5
"""Names in a message."""


def start_equal(world: World, replica: VectorModel) -> None:
    """Give every replica the state of rank 0's, and prove by a hash that it arrived."""
    if world.size == 1:
        return
    _compare_layouts(world, replica)
    for hand_out, accept in (
        (replica.parameters, replica.accept_parameters),
        (replica.buffers, replica.accept_buffers),
        (replica.constants, replica.accept_constants),
    ):
        vector = hand_out()
        if vector.size:
            world.broadcast(vector)
            accept()
    check_equal(world, replica)
    optimizers = world.allgather_values(replica.describe_optimizer())
    for rank, optimizer in enumerate(optimizers):
        if optimizer != optimizers[0]:
            raise ReplicaError(
                f"the optimizers differ: rank {rank} has {optimizer}, rank 0 has {optimizers[0]}; "
                "make them alike, and load the same checkpoint on every rank"
            )


def check_equal(world: World, replica: VectorModel) -> None:
    """Raise on every rank when the parameters are not the same everywhere."""
    vector = replica.parameters()
    sums = world.allgather_values(checksum(vector))
    differing = [rank for rank, other in enumerate(sums) if other != sums[0]]
    if not differing:
        return
    names = _differing_names(world, replica.layout, vector, differing)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise ReplicaError(
        f"the parameters on rank {', '.join(map(str, differing))} differ from rank 0's in "
        f"{', '.join(names[:_SHOWN])}{more}; nothing but the exchange may write to them"
    )


def _differing_names(
    world: World, layout: Layout, vector: Vector, differing: list[int]
) -> list[str]:
    sums = [checksum(vector[e.offset : e.offset + e.size]) for e in layout.entries]
    everyone = world.allgather_values(sums)
    return [
        entry.name
        for at, entry in enumerate(layout.entries)
        if any(everyone[rank][at] != everyone[0][at] for rank in differing)
    ]


def copy_state(world: World, model: VectorModel, source: int, behind: bool) -> None:
    """Give the models that are `behind` the parameters and the optimizer's state of `source`."""
    parameters = model.parameters().copy()
    world.broadcast(parameters, source)
    state = broadcast_tree(world, model.optimizer_state() if world.rank == source else {}, source)
    if behind:
        model.parameters()[:] = parameters
        model.accept_parameters()
        model.accept_optimizer_state(state)


def copy_buffers(world: World, model: VectorModel, source: int, behind: bool) -> None:
    """Give the models that are `behind` the buffers of `source`."""
    vector = model.buffers()
    if vector.size:
        found = vector.copy()
        world.broadcast(found, source)
        if behind:
            vector[:] = found
            model.accept_buffers()


def broadcast_tree(world: World, tree: Tree, source: int = 0) -> Tree:
    """The tree of `source`, on every rank."""
    arrays, values = split(tree)
    kinds = {name: (array.shape, array.dtype.str) for name, array in arrays.items()}
    kinds, values = world.bcast_value((kinds, values), source)
    if world.rank != source:
        arrays = {name: np.empty(shape, np.dtype(kind)) for name, (shape, kind) in kinds.items()}
    for array in arrays.values():
        world.broadcast(array, source)
    return join(arrays, values)


def average_buffers(world: World, replica: VectorModel, works: bool = True) -> None:
    """Make untrained float state (BatchNorm statistics) the mean over the ranks that train.

    The mean is taken of the differences from rank 0, so that a value which is the same everywhere
    (a mask, a constant) stays what it is to the last bit.
    """
    vector = replica.buffers()
    if world.size == 1 or not vector.size:
        return
    reference = vector.copy()
    world.broadcast(reference)
    differs = vector != reference  # infinities that are the same everywhere must not cancel to NaN
    np.subtract(vector, reference, out=vector, where=differs)
    vector[~differs] = 0.0
    if not works:
        vector[:] = 0.0
    workers = sum(world.allgather_values(works))
    world.all_reduce(vector)
    vector *= 1.0 / workers
    vector += reference
    replica.accept_buffers()


def _compare_layouts(world: World, replica: VectorModel) -> None:
    facts = (replica.layout.fingerprint(), replica.buffers().size, replica.constants().size)
    everyone = world.allgather_values(facts)
    if len({fact[0] for fact in everyone}) > 1:
        found = differences(world.allgather_values(replica.layout))
        raise ReplicaError(f"the ranks have different models: {'; '.join(found)}")
    for rank, other in enumerate(everyone):
        if other != everyone[0]:
            raise ReplicaError(
                f"the ranks have different models: rank {rank} has buffers and constants of "
                f"{other[1:]} elements, rank 0 of {everyone[0][1:]}"
            )


def check_finite_weights(weights: Vector, rank: int) -> None:
    """Refuse to share weights that no step can mend."""
    if not is_finite(weights):
        raise TrainingError(
            f"the weights of rank {rank} are not finite, so they are not shared with the others; "
            "lower the learning rate, or go on from a checkpoint"
        )
