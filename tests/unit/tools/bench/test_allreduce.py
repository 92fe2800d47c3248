"""What the ranks of `bench allreduce` do, among threads."""

from functools import partial

import numpy as np
import pytest

from paceline.comm import run_world
from paceline.errors import WorldError
from paceline.tools.bench import allreduce
from paceline.tools.bench.ranks.allreduce import SumContestant, check_result, measure

SETTINGS = {"sizes": [1024, 65536], "peers": ["memcpy"], "rounds": 2, "span_s": 0.001}


def test_every_size_has_a_time_for_ours_and_each_peer_and_ranks_agree():
    results = run_world(3, lambda world: measure(world, SETTINGS))
    assert results[0] == results[1] == results[2]
    assert [entry["bytes"] for entry in results[0]] == [1024, 65536]
    for entry in results[0]:
        assert list(entry["seconds"]) == ["ours", "memcpy"]
        assert all(0 < seconds < 1 for seconds in entry["seconds"].values())


def test_a_sum_that_is_wrong_in_one_place_of_one_rank_is_not_measured():
    def program(world):
        vector = np.empty(1000, np.float32)

        def call():
            world.all_reduce(vector)
            vector[7] += world.rank == 1

        check_result(world, "ours", SumContestant(call, vector))

    with pytest.raises(WorldError, match="ours gave wrong values in 1 places"):
        run_world(2, program)


def test_a_copy_is_checked_where_it_went():
    def program(world, copies):
        vector, target = np.empty(1000, np.float32), np.zeros(1000, np.float32)
        call = partial(np.copyto, target, vector) if copies else lambda: None
        check_result(world, "memcpy", SumContestant(call, vector, target))

    run_world(2, lambda world: program(world, copies=True))
    with pytest.raises(WorldError, match="memcpy gave wrong values"):
        run_world(2, lambda world: program(world, copies=False))


def test_the_sizes_are_those_of_the_promise():
    names = [allreduce.render_size(size) for size in allreduce.SIZES]
    assert names == [
        *("1 KB", "4 KB", "16 KB", "64 KB", "256 KB"),
        *("1 MB", "4 MB", "16 MB", "100 MB"),
    ]
