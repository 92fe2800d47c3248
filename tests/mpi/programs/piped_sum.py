"""Long sums between ranks that are nodes of their own: right, and no message is left."""

import numpy as np
from mpi4py import MPI

from paceline import init

world = init()
world.node_ranks = (world.rank,)


def numbers(size, dtype, rank):
    return (1000 * np.random.default_rng(rank).normal(size=size)).astype(dtype)


for dtype in ("float32", "float64", "int64"):
    for size in (300_000, 2_000_003):
        vector = numbers(size, dtype, world.rank)
        world.all_reduce(vector)
        expected = numbers(size, dtype, 0)
        for rank in range(1, world.size):
            expected += numbers(size, dtype, rank)
        assert vector.tobytes() == expected.tobytes(), (dtype, size)
world.barrier()
assert not world._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
assert world._pipe_of.keys() == {np.dtype("f4"), np.dtype("f8"), np.dtype("i8")}
print("DONE", flush=True)
