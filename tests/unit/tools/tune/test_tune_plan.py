"""Which settings get a trial, in which order, and which cannot win."""

import pytest

from paceline.tools.tune.plan import Capacity, RankSetting, Speed, beyond, plan, why_not

GB = 10**9


def pairs(settings):
    return [(setting.ranks, setting.threads) for setting in settings]


def speeds(*triples):
    return [Speed(RankSetting(ranks, threads), rate) for ranks, threads, rate in triples]


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, [(1, 1), (2, 1)]),
        (2, [(2, 1), (3, 1), (4, 1), (1, 2), (1, 1)]),
        (6, [(6, 1), (9, 1), (12, 1), (4, 1), (3, 1), (2, 3), (1, 6)]),
        (8, [(8, 1), (12, 1), (16, 1), (4, 2), (4, 1), (2, 4), (1, 8)]),
    ],
)
def test_a_rank_per_core_comes_first_then_more_then_fewer(cores, expected):
    assert pairs(plan(Capacity(cores, cores))) == expected


def test_ranks_that_are_named_share_the_cores():
    assert pairs(plan(Capacity(8, 8), ranks=[1, 4, 16])) == [(16, 1), (4, 2), (1, 8)]


def test_every_rank_goes_with_every_thread_if_both_are_named():
    found = plan(Capacity(2, 2), ranks=[1, 2], threads=[1, 2])
    assert sorted(pairs(found)) == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_threads_alone_leave_out_what_is_far_beyond_the_cores():
    assert sorted(pairs(plan(Capacity(4, 4), threads=[2]))) == [(1, 2), (2, 2), (4, 2)]
    assert pairs(plan(Capacity(2, 2), threads=[16])) == [(1, 16)]


def test_no_rank_gets_more_threads_than_a_node_has_cores():
    found = plan(Capacity(cores=32, node_cores=16, most_ranks=32))
    assert max(setting.threads for setting in found) == 16
    assert max(setting.ranks for setting in found) == 32


def test_more_ranks_still_are_tried_if_the_most_were_the_quickest():
    assert beyond(speeds((2, 1, 10), (3, 1, 12), (4, 1, 14)), cores=2) == RankSetting(6)
    assert beyond(speeds((2, 1, 10), (3, 1, 15), (4, 1, 14)), cores=2) is None
    assert beyond(speeds((1, 1, 10), (2, 1, 12)), cores=2) is None, "no more than cores: not a gap"
    assert beyond(speeds((15, 1, 10)), cores=2) is None, "there is an end"
    assert beyond([], cores=2) is None


def test_more_ranks_are_left_out_after_two_falls():
    fallen = speeds((2, 1, 10), (3, 1, 9), (4, 1, 8))
    assert why_not(RankSetting(6), fallen, 2, None) == "more ranks were slower already"
    assert why_not(RankSetting(6), fallen[:2], 2, None) is None
    assert why_not(RankSetting(6), speeds((2, 1, 10), (3, 1, 8), (4, 1, 9)), 2, None) is None
    assert why_not(RankSetting(6, 2), fallen, 2, None) is None, "other threads are another line"


def test_fewer_ranks_with_more_threads_are_left_out_after_two_falls():
    fallen = speeds((8, 1, 10), (4, 2, 9), (2, 4, 8))
    assert why_not(RankSetting(1, 8), fallen, 8, None) == "fewer ranks were slower already"
    assert why_not(RankSetting(1, 8), fallen[:2], 8, None) is None
    assert why_not(RankSetting(1, 1), fallen, 8, None) is None, "with less threads it may differ"


def test_what_does_not_fit_into_memory_is_left_out():
    known = [Speed(RankSetting(2), 10.0, rank_bytes=3 * GB, shared_bytes=1 * GB)]
    assert why_not(RankSetting(4), known, 2, 13 * GB) is None
    assert why_not(RankSetting(5), known, 2, 13 * GB) == "would take 16.0 GB, 13.0 GB are free"
    assert why_not(RankSetting(5), known, 2, None) is None
