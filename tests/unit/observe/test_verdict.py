"""Who is named for what, on made-up steps."""

import numpy as np
import pytest

from paceline.observe.verdict import RankTimes, judge

STEPS = 100


def ranks(own, *, data=0.0, queued=0.0, exchange=0.001, noise=0.02, nodes=None, seed=0, **more):
    """Ranks of a synchronous rule that compute for so long; who is ready first waits."""
    rng = np.random.default_rng(seed)
    own = np.array(own, float).reshape(len(own), -1) * np.ones((1, STEPS))
    own = own * np.abs(rng.normal(1.0, noise, own.shape))
    data = np.array(data, float).reshape(-1, 1) * np.ones_like(own)
    queued = np.array(queued, float).reshape(-1, 1) * np.ones_like(own)
    work = own + data
    wait = work.max(axis=0) - work
    rows = np.stack([own, wait, np.full_like(own, exchange), data, queued], axis=2)
    seconds = float(rows[0, :, :4].sum())
    names = nodes or ["n1"] * len(own)
    return {
        rank: RankTimes(names[rank], rows[rank], seconds=seconds, **more)
        for rank in range(len(own))
    }


@pytest.mark.parametrize(
    ("found", "cause", "reason"),
    [
        (ranks([1, 1, 1.5, 1]), "compute", "it computes 1.5x as long"),
        (ranks([1, 1, 1, 1], data=[0, 0, 0.5, 0]), "data", "it waits 500 ms per step for data"),
        (ranks([1, 1, 1.5, 1], queued=[0, 0, 0.5, 0]), "other load", "something else takes"),
        (ranks([1, 1, 1.3, 1], data=[0, 0, 0.3, 0]), None, "partly by computing"),
    ],
)
def test_a_slow_rank_is_named_with_its_cause(found, cause, reason):
    verdict = judge(found)
    assert (verdict.kind, verdict.rank, verdict.cause) == ("rank", 2, cause)
    assert reason in verdict.sentence
    assert verdict.last_in == 1.0
    assert verdict.lost == pytest.approx(1 / 3, abs=0.1)


@pytest.mark.parametrize("size", [2, 4, 64])
@pytest.mark.parametrize("noise", [0.001, 0.02, 0.03])
def test_ranks_that_differ_by_chance_are_not_named(size, noise):
    for seed in range(20):
        verdict = judge(ranks([1] * size, noise=noise, seed=seed))
        assert (verdict.kind, verdict.rank) == ("even", None), verdict.sentence


def test_no_rank_is_named_for_great_differences_by_chance():
    for seed in range(20):
        many = ranks([1, 1], noise=0.5, seed=seed)
        few = {rank: RankTimes("n", one.rows[:24]) for rank, one in many.items()}
        assert judge(few).rank is None


def test_one_hiccup_names_nobody():
    own = np.ones((2, STEPS))
    own[1, 50] = 100.0
    assert judge(ranks(own)).kind == "even"


def test_ranks_that_take_turns():
    own = np.ones((4, STEPS))
    own[np.arange(STEPS) % 4, np.arange(STEPS)] = 2.0
    verdict = judge(ranks(own))
    assert (verdict.kind, verdict.rank, verdict.cause) == ("turns", None, "uneven work")
    assert verdict.lost == pytest.approx(0.375, abs=0.05)


def test_a_node_whose_ranks_are_all_slow_is_named_and_no_rank():
    nodes = ["n1", "n1", "n2", "n2", "n3", "n3"]
    verdict = judge(ranks([1, 1, 1.4, 1.4, 1, 1], nodes=nodes))
    assert (verdict.kind, verdict.rank, verdict.node) == ("node", None, "n2")
    assert verdict.last_in == 1.0
    assert "its ranks compute 1.4x as long" in verdict.sentence


def test_one_slow_rank_does_not_accuse_its_node():
    nodes = ["n1", "n1", "n2", "n2"]
    verdict = judge(ranks([1, 1, 1.4, 1], nodes=nodes))
    assert (verdict.kind, verdict.rank, verdict.node) == ("rank", 2, "n2")
    assert "rank 2 (n2)" in verdict.sentence


def test_a_slow_link_is_nobodys_waiting():
    verdict = judge(ranks([1, 1, 1], exchange=2.0))
    assert (verdict.kind, verdict.cause, verdict.rank) == ("communication", "communication", None)
    assert verdict.lost == pytest.approx(2 / 3, abs=0.05)


def test_saving_that_takes_long_comes_first():
    verdict = judge(ranks([1, 1], saved_s=30.0))
    assert (verdict.kind, verdict.cause) == ("saving", "checkpoint")
    assert verdict.lost == pytest.approx(0.3, abs=0.05)


def test_few_steps_and_one_rank_are_not_judged():
    few = {rank: RankTimes("n", [[1.0 + rank, 1.0 - rank, 0, 0, 0]] * 20) for rank in (0, 1)}
    assert judge(few).kind == "unknown"
    assert judge(ranks([1])) is None


class TestAsynchronousWorkers:
    def test_a_slow_one_is_named_whatever_takes_it_longer(self):
        for part, cause in ((0, "compute"), (2, "communication"), (3, "data")):
            rows = np.random.default_rng(0).normal(0.1, 0.005, (4, STEPS, 5))
            rows[..., 1] = rows[..., 4] = 0.0
            rows[3, :, part] += 0.3
            found = {rank: RankTimes("n", rows[rank]) for rank in range(4)}
            verdict = judge(found, asynchronous=True)
            assert (verdict.kind, verdict.rank, verdict.cause) == ("rank", 3, cause)
            assert "takes 2.0x as long per step" in verdict.sentence
            assert verdict.lost == pytest.approx(0.125, abs=0.01)

    def test_those_that_are_equally_fast_are_not(self):
        for seed in range(20):
            rows = np.abs(np.random.default_rng(seed).normal(0.1, 0.08, (8, 20, 5)))
            found = {rank: RankTimes("n", rows[rank]) for rank in range(8)}
            assert judge(found, asynchronous=True).kind == "even"
