"""The sharding of samples: every sample exactly once, every rank in every step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data import Shard, epoch_order, plan_steps
from paceline.data.sampling.shards import rank_bounds
from paceline.errors import ConfigError, DataError

sizes = st.integers(1, 9)
batches = st.integers(1, 12)


@given(st.integers(1, 400), sizes, batches)
def test_every_sample_exactly_once_and_no_rank_without(samples, size, batch_size):
    samples = max(samples, size)
    plan = plan_steps(samples, size, batch_size)
    edge = 0
    for step in range(len(plan)):
        assert plan.span(step)[0] == edge
        lengths = []
        for rank in range(size):
            begin, end = plan.bounds(step, rank)
            assert begin == edge
            edge = end
            lengths.append(end - begin)
        assert min(lengths) >= (2 if size > 1 and samples >= 2 * size and batch_size > 1 else 1)
        assert max(lengths) - min(lengths) <= 1
        if step < len(plan) - 1:
            assert lengths == [batch_size] * size
        assert max(lengths) <= batch_size + 2
    assert edge == samples


@given(st.integers(1, 400), batches)
def test_one_rank_gets_the_plain_batches(samples, batch_size):
    plan = plan_steps(samples, 1, batch_size)
    found = [plan.bounds(step, 0) for step in range(len(plan))]
    assert found == [
        (first, min(first + batch_size, samples)) for first in range(0, samples, batch_size)
    ]


def test_a_remainder_smaller_than_two_per_rank_joins_the_step_before():
    plan = plan_steps(samples=26, size=4, batch_size=3)
    assert len(plan) == 2
    assert [plan.bounds(1, rank) for rank in range(4)] == [(12, 16), (16, 20), (20, 23), (23, 26)]


def test_a_remainder_that_suffices_is_a_step_of_its_own():
    plan = plan_steps(samples=33, size=4, batch_size=3)
    assert len(plan) == 3
    assert [plan.bounds(2, rank) for rank in range(4)] == [(24, 27), (27, 29), (29, 31), (31, 33)]


def test_batches_of_one_sample_need_no_second_one():
    assert len(plan_steps(samples=10, size=4, batch_size=1)) == 2  # 4, and 4 + 2
    assert len(plan_steps(samples=12, size=4, batch_size=1)) == 3


def test_steps_that_do_not_exist_have_no_bounds():
    plan = plan_steps(samples=26, size=4, batch_size=3)
    for step in (-1, 2):
        with pytest.raises(IndexError, match=f"step {step} of an epoch of 2"):
            plan.bounds(step, 0)


def test_more_ranks_than_samples_are_refused():
    with pytest.raises(DataError, match=r"^8 ranks but only 5 training samples; start at most 5"):
        plan_steps(samples=5, size=8, batch_size=1)
    with pytest.raises(DataError, match="no training samples"):
        plan_steps(samples=0, size=1, batch_size=1)


@pytest.mark.parametrize("batch_size", [0, -3])
def test_a_batch_without_samples_is_refused(batch_size):
    with pytest.raises(ConfigError, match=f"batch_size is {batch_size}, expected 1 or more"):
        plan_steps(10, 2, batch_size)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_shard_lies_within_the_world(rank, size):
    with pytest.raises(ConfigError, match=f"rank {rank}, .*size \\({size}\\)"):
        Shard(rank, size)


@given(st.integers(0, 100), sizes)
def test_dealing_matches_array_split(samples, size):
    parts = np.array_split(np.arange(samples), size)
    for rank, part in enumerate(parts):
        assert list(range(*rank_bounds(samples, rank, size))) == part.tolist()


@given(st.integers(0, 200), st.integers(0, 2**40), st.integers(0, 50))
def test_the_order_is_a_permutation_that_repeats(samples, seed, epoch):
    order = epoch_order(samples, seed, epoch)
    assert sorted(order.tolist()) == list(range(samples))
    assert order.tolist() == epoch_order(samples, seed, epoch).tolist()


def test_the_order_differs_by_epoch_and_by_seed():
    orders = [epoch_order(100, seed, epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_the_order_of_a_seed_never_changes():
    # A resumed run must see the order that the interrupted one saw, in any later release.
    assert epoch_order(8, seed=7, epoch=3).tolist() == [3, 5, 0, 4, 2, 7, 1, 6]


def test_without_shuffling_the_order_is_that_of_the_data():
    assert epoch_order(5, 0, 3, shuffle=False).tolist() == [0, 1, 2, 3, 4]


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="seed is -1"):
        epoch_order(5, -1, 0)
