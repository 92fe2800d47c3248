"""The all-reduce through the memory of nodes, on ranks that are threads."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.comm import run_world
from paceline.comm.allreduce import node as module
from paceline.comm.allreduce.node import NodeAllreduce
from paceline.errors import WorldError

NODES = {
    "one": [(0, 1)],
    "one of three": [(0, 1, 2)],
    "two of two": [(0, 1), (2, 3)],
    "uneven": [(0, 1, 2), (3,)],
    "scattered": [(0, 2, 4), (1, 3)],
}
SIZES = [1, 63, 64, 65, 1000, 100_003]


def join(world, nodes):
    world.node_ranks = next(ranks for ranks in nodes if world.rank in ranks)
    return NodeAllreduce(world)


def values_of(rank, size, dtype):
    return (np.random.default_rng(rank).normal(size=size) * 100).astype(dtype)


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.float16])
@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_every_rank_gets_the_sum_over_all(nodes, dtype, made, monkeypatch):
    monkeypatch.setattr(module, "LONG_BYTES", 0)
    monkeypatch.setattr(module, "STAGE_BYTES", 4096)  # so that several pieces pass through
    monkeypatch.setattr(module, "FAR_STAGE_BYTES", 8192)
    monkeypatch.setattr(module, "CHUNK_BYTES", 2048)
    ranks = sum(map(len, nodes))

    def program(world):
        sums, found = join(world, nodes), []
        for size in SIZES:
            buffer = values_of(world.rank, size, dtype)
            if made:
                home = sums.make_buffer(buffer.nbytes + 128)[64 : 64 + buffer.nbytes].view(dtype)
                home[:] = buffer
                buffer = home
            assert sums.all_reduce(buffer)
            found.append(buffer.copy())
        return found

    results = run_world(ranks, program)
    for at, size in enumerate(SIZES):
        expected = sum(
            values_of(rank, size, np.dtype(dtype)).astype(float) for rank in range(ranks)
        )
        atol = 2.0 if dtype == np.float16 else 1e-3
        assert np.allclose(results[0][at], expected, atol=atol, rtol=1e-2)
        assert len({found[at].tobytes() for found in results}) == 1


def test_ranks_of_one_node_are_added_in_their_order():
    def program(world):
        sums = join(world, [(0, 1, 2)])
        buffer = sums.make_buffer(4 * 300).view(np.float32)
        buffer[:] = [1e8, 1.0, -1e8][world.rank]
        sums.all_reduce(buffer)
        return buffer.copy()

    in_order = np.float32(1e8) + np.float32(1.0) + np.float32(-1e8)
    for found in run_world(3, program):
        assert set(found.tolist()) == {float(in_order)}


def test_a_buffer_that_one_rank_made_and_another_did_not_is_summed_all_the_same(monkeypatch):
    monkeypatch.setattr(module, "LONG_BYTES", 0)

    def program(world):
        sums = join(world, [(0, 1)])
        made = sums.make_buffer(4000).view(np.float32)
        buffer = made if world.rank else np.zeros(1000, np.float32)
        buffer[:] = world.rank + 1
        sums.all_reduce(buffer)
        return set(buffer.tolist())

    assert run_world(2, program) == [{3.0}, {3.0}]


def test_a_buffer_that_was_dropped_is_one_like_any_other(monkeypatch):
    monkeypatch.setattr(module, "LONG_BYTES", 0)

    def program(world):
        sums = join(world, [(0, 1)])
        made = sums.make_buffer(4000).view(np.float32)
        if world.rank:
            sums.drop_buffer(made)
        made[:] = world.rank + 1
        sums.all_reduce(made)
        return set(made.tolist())

    assert run_world(2, program) == [{3.0}, {3.0}]


def test_short_messages_of_one_node_that_nobody_made_are_left_to_mpi():
    def program(world):
        buffer = np.ones(1000, np.float32)
        return join(world, [(0, 1)]).all_reduce(buffer), set(buffer.tolist())

    assert run_world(2, program) == [(False, {1.0}), (False, {1.0})]


def test_vectors_that_differ_are_an_error_on_every_rank():
    def program(world):
        sums = join(world, [(0, 1)])
        with pytest.raises(WorldError, match="4000 bytes, 4004 bytes"):
            sums.all_reduce(np.ones(1000 + world.rank, np.float32))
        return True

    assert run_world(2, program) == [True, True]
