"""The sum between nodes, in short messages."""

import numpy as np
import pytest

from paceline.comm import run_world
from paceline.comm.allreduce import pipelined as piped_sum
from paceline.comm.allreduce.pipelined import MESSAGE_BYTES, PipelinedAllreduce


def numbers(size, dtype, rank):
    return (1000 * np.random.default_rng(rank).normal(size=size)).astype(dtype)


@pytest.fixture(params=[64, 1], ids=["far ahead", "one ahead"])
def ahead(request, monkeypatch):
    monkeypatch.setattr(piped_sum, "AHEAD", request.param)


PART = MESSAGE_BYTES // 4
"""Elements of the longest part of float32."""


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 4, PART, 2 * PART + 1, 11 * PART - 7])
def test_every_rank_gets_the_sum_in_the_order_of_ranks(ranks, size, ahead):
    def program(world):
        sums = PipelinedAllreduce(world, np.float32)
        found = []
        for turn in range(2):  # the memory of messages is used again
            vector = numbers(size, np.float32, world.rank + 10 * turn)
            found.append((vector, sums.all_reduce(vector)))
        return found

    results = run_world(ranks, program)
    for turn in range(2):
        expected = numbers(size, np.float32, 10 * turn)
        for rank in range(1, ranks):
            expected += numbers(size, np.float32, rank + 10 * turn)
        sent = 0
        for found in results:
            assert found[turn][0].tobytes() == expected.tobytes()
            sent += found[turn][1]
        assert sent == 2 * (ranks - 1) * expected.nbytes


@pytest.mark.parametrize("dtype", ["float64", "int64", "int8"])
def test_other_types(dtype):
    def program(world):
        vector = numbers(50_000, dtype, world.rank)
        PipelinedAllreduce(world, dtype).all_reduce(vector)
        return vector

    expected = numbers(50_000, dtype, 0) + numbers(50_000, dtype, 1)
    for vector in run_world(2, program):
        assert vector.tobytes() == expected.tobytes()


def test_a_number_that_is_not_finite_travels_without_a_warning():
    def program(world):
        vector = np.full(8, np.inf if world.rank else -np.inf, np.float32)
        PipelinedAllreduce(world, np.float32).all_reduce(vector)
        return np.isnan(vector).all()

    assert all(run_world(2, program))


def test_no_message_is_longer_than_what_mpi_sends_at_once(monkeypatch):
    sent = []

    def program(world):
        plain = world.isend

        def dispatch(buffer, to, tag=0):
            sent.append(buffer.nbytes)
            return plain(buffer, to, tag)

        world.isend = dispatch
        PipelinedAllreduce(world, np.float64).all_reduce(np.zeros(100_000))

    run_world(2, program)
    assert max(sent) <= MESSAGE_BYTES < 64 * 1024
    assert sum(sent) == 2 * 800_000


def test_a_rank_that_fails_ends_the_sum_of_the_others():
    def program(world):
        if world.rank == 1:
            raise ValueError("unwell")
        PipelinedAllreduce(world, np.float32).all_reduce(np.zeros(100_000, np.float32))

    with pytest.raises(ValueError, match="unwell"):
        run_world(3, program, timeout_s=20)
