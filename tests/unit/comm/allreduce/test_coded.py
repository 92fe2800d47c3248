"""Sums with compressed messages: near the exact sum, and the same on every rank."""

import numpy as np
import pytest

from paceline.comm import run_world
from paceline.comm.allreduce.coded import CompressedAllreduce, make_sums
from paceline.comm.wire import make_codec

LOSSY = ["bfloat16", "float16", "int8"]

every_wire = pytest.mark.parametrize("wire", LOSSY)
every_type = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def numbers(size, dtype, seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=size) * 10.0 ** rng.uniform(-6, 3, size)).astype(dtype)


def sum_up(ranks, wire, size, dtype, times=1):
    """Each rank's mean of so many sums of the same vectors, the bytes of one, and its errors."""

    def program(world):
        sums = CompressedAllreduce(world, make_codec(wire, dtype), size, dtype)
        total = np.zeros(size)
        for _ in range(times):
            vector = numbers(size, dtype, seed=world.rank)
            sent = sums.all_reduce(vector)
            total += vector
        return total / times, sent, sums

    return run_world(ranks, program)


@every_wire
@every_type
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [1, 5, 32, 5003])
def test_a_compressed_sum_is_near_and_the_same_everywhere(wire, dtype, ranks, size):
    results = sum_up(ranks, wire, size, dtype)
    vectors = [numbers(size, dtype, seed=rank).astype(float) for rank in range(ranks)]
    exact = np.sum(vectors, axis=0)
    for total, _, _ in results:
        assert total.tobytes() == results[0][0].tobytes()
    relative = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "int8": 1 / 254}[wire]
    largest = sum(np.abs(vector).max() for vector in vectors)
    assert np.all(np.abs(results[0][0] - exact) <= 2.01 * relative * largest)
    if ranks == 1:
        assert results[0][0].tobytes() == exact.tobytes()


@every_wire
@every_type
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_mean_of_many_compressed_sums_is_exact(wire, dtype, ranks):
    times, size = 64, 2100
    once, mean = (sum_up(ranks, wire, size, dtype, times=n)[0][0] for n in (1, times))
    exact = np.sum([numbers(size, dtype, seed=rank).astype(float) for rank in range(ranks)], axis=0)
    before, after = (np.abs(found - exact).max() for found in (once, mean))
    assert after < 3 * before / times + 1e-6 * np.abs(exact).max()


def test_errors_hold_all_that_a_sum_misses():
    """The exact sum less the result is what both errors hold: nothing is lost."""
    ranks, size = 3, 2100
    results = sum_up(ranks, "int8", size, np.float64)
    exact = np.sum([numbers(size, np.float64, seed=rank) for rank in range(ranks)], axis=0)
    left = np.sum([sums.given.error for _, _, sums in results], axis=0)
    left += np.concatenate([sums.summed.error for _, _, sums in results])
    assert results[0][0] + left == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_bytes_are_those_that_go_to_others(ranks):
    for wire, slot in (("bfloat16", 8192 // ranks), ("int8", 4096 // ranks + 16 // ranks)):
        sent = [sent for _, sent, _ in sum_up(ranks, wire, 4096, np.float32)]
        assert sent == [2 * (ranks - 1) * slot] * ranks


@every_wire
def test_a_broken_number_reaches_everybody_and_does_not_stay(wire):
    def program(world):
        sums = CompressedAllreduce(world, make_codec(wire, np.float32), 3000, np.float32)
        vector = np.ones(3000, np.float32)
        vector[7] = np.nan if world.rank == 1 else 1.0
        sums.all_reduce(vector)
        again = np.ones(3000, np.float32)
        sums.all_reduce(again)
        return np.isnan(vector[7]), np.isfinite(again).all()

    assert run_world(3, program) == [(True, True)] * 3


def test_nothing_is_compressed_in_float32_nor_alone_nor_on_one_node():
    assert run_world(1, lambda world: make_sums(world, "int8", [8], np.float32)) == [None]
    for wire in ("float32", "int8"):
        assert (
            run_world(2, lambda world, w=wire: make_sums(world, w, [8], np.float32)) == [None] * 2
        )


@every_wire
@pytest.mark.parametrize("nodes", [[(0,), (1,)], [(0, 1), (2, 3)], [(0, 2, 3), (1,)]], ids=str)
def test_only_messages_between_nodes_are_compressed(nodes, wire):
    ranks, size = sum(map(len, nodes)), 2100

    def program(world):
        world.node_ranks = next(members for members in nodes if world.rank in members)
        total = np.zeros(size, np.float32)
        for far in make_sums(world, wire, [size] * 2, np.float32):
            vector = numbers(size, np.float32, seed=world.rank)
            sent = far.all_reduce(vector)
            total += vector / 2
        return total, sent

    results = run_world(ranks, program)
    exact = np.sum([numbers(size, np.float32, seed=rank) for rank in range(ranks)], axis=0)
    assert len({total.tobytes() for total, _ in results}) == 1
    assert results[0][0].tobytes() != exact.tobytes()
    assert results[0][0] == pytest.approx(exact, abs=0.03 * float(np.abs(exact).max()))
    owners = min(map(len, nodes))
    assert [sent > 0 for _, sent in results].count(True) == owners * len(nodes)
