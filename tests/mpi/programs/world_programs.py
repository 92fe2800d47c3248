"""What an MPI world does beyond the contract of all worlds."""

import numpy as np
import pytest
from mpi4py import MPI
from support import world_checks

import paceline
from paceline.comm import mpi


def identify(world):
    assert paceline.init() is world
    return type(world).__name__, world.rank, world.size


def limit_lengths(world):
    """Buffers that are longer than one call of MPI takes, with the limits set low.

    Not below the 1,024 elements of what the watch sends, which goes on meanwhile.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mpi, "MAX_ELEMENTS", 1500)
        patch.setattr(mpi, "MAX_MESSAGE", 1100)
        world_checks.broadcast_gives_the_roots_values(world, 1003)
        world_checks.neighbours_pass_messages_on_a_ring(world, 1100)
        for post in (world.irecv, world.isend):
            with pytest.raises(ValueError, match="1101 elements, and MPI takes at most 1100"):
                post(np.zeros(1101), 0)
        world.barrier()


def sum_between_nodes(world):
    """Long sums between ranks that are nodes of their own: right, and no message is left."""
    world.node_ranks = (world.rank,)
    sums = 0
    for dtype in ("float32", "float64", "int64"):
        for size in (300_000, 2_000_003):
            vector = numbers(size, dtype, world.rank)
            world.all_reduce(vector)
            expected = numbers(size, dtype, 0)
            for rank in range(1, world.size):
                expected += numbers(size, dtype, rank)
            assert vector.tobytes() == expected.tobytes(), (dtype, size)
            sums += 1
    world.barrier()
    assert not world._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
    assert world._pipelines.keys() == {np.dtype(name).num for name in ("f4", "f8", "i8")}
    return sums


def numbers(size, dtype, rank):
    few = 1000 * np.random.default_rng(rank).normal(size=10_007)  # to draw all takes seconds
    return np.resize(few, size).astype(dtype)
