"""Equal costs: every sample once, every rank busy, and the spread of costs bounded."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data import ArraySource, EpochRemainder, Shard, training_batches
from paceline.data.sampling.balance import (
    choose_bucketing,
    plan_balanced,
    split_padded,
    split_step,
)
from paceline.data.sampling.shards import epoch_order, plan_steps, smallest_step
from paceline.data.sampling.split import Balance, SpeedTable, rest_of, split_epoch
from paceline.errors import CheckpointError, ConfigError

any_cost = st.one_of(st.just(0.0), st.floats(0, 1e6), st.sampled_from([1.0, 1e9]))


def sentences(count, seed=0):
    """Lengths as of sentences: log-normal, 20 words on average, 200 at most."""
    rng = np.random.default_rng(seed)
    return np.clip(np.round(rng.lognormal(np.log(20) - 0.245, 0.7, count)), 1, 200)


def loads(costs, plan, **options):
    """The cost of each rank in each step."""
    options = {"bucketing": 0.0, "draw": np.random.default_rng(1)} | options
    epoch = plan_balanced(costs, plan, **options)
    return np.array(
        [
            [costs[epoch.share(step, rank)].sum() for rank in range(plan.size)]
            for step in range(len(epoch))
        ]
    )


@given(
    costs=st.lists(any_cost, min_size=1, max_size=60),
    size=st.integers(1, 9),
)
def test_a_step_is_split_whole_and_no_rank_is_left_out(costs, size):
    costs = np.array(costs)
    ranks = split_step(costs, size)
    counts = np.bincount(ranks, minlength=size)
    assert counts.sum() == len(costs)
    assert (counts > 0).sum() == min(size, len(costs))
    if len(costs) >= 2 * size:
        assert counts.min() >= 2


@given(costs=st.lists(st.floats(1, 100), min_size=4, max_size=80), size=st.integers(2, 6))
def test_no_rank_has_more_than_the_mean_and_two_of_the_largest(costs, size):
    """What longest first guarantees is the mean and one sample; the second of each rank may add
    one more."""
    costs = np.array(costs)
    found = np.bincount(split_step(costs, size), costs, size)
    assert found.max() <= costs.sum() / size + 2 * costs.max() * (1 + 1e-9)


def test_one_giant_sample_is_not_made_worse():
    costs = np.array([1000.0] + [1.0] * 31)
    assert np.bincount(split_step(costs, 4), costs, 4).max() == 1001.0


@given(
    samples=st.integers(5, 90),
    size=st.integers(1, 5),
    batch=st.integers(1, 6),
    bucketing=st.sampled_from([None, 0.0, 0.6, 1.0]),
    shuffle=st.booleans(),
    giant=st.booleans(),
)
def test_every_sample_comes_once_and_steps_are_as_long_as_by_count(
    samples, size, batch, bucketing, shuffle, giant
):
    costs = sentences(samples)
    costs[0] = 1e6 if giant else costs[0]
    source = ArraySource(np.arange(samples))
    whole, order = EpochRemainder(size, batch), {"seed": 3, "epoch": 2, "shuffle": shuffle}
    split = split_epoch(source, whole, Balance(costs, bucketing), **order)
    ranks = [
        list(
            training_batches(
                source, shard=Shard(rank, size), batch_size=batch, split=split, prefetch=0, **order
            )
        )
        for rank in range(size)
    ]
    seen = [i for batches in ranks for one in batches for i in one.indices]
    assert sorted(seen) == list(range(samples))
    plan = plan_steps(samples, size, batch)
    assert {len(batches) for batches in ranks} == {len(plan)} == {len(split)}
    for step in range(len(plan)):
        first, last = plan.span(step)
        assert sum(batches[step].samples for batches in ranks) == last - first


@given(samples=st.integers(8, 80), taken=st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_other_ranks_go_on_with_what_is_left(samples, taken):
    source, balance = ArraySource(np.arange(samples)), Balance(sentences(samples))
    order = {"seed": 1, "epoch": 1}
    before = split_epoch(source, EpochRemainder(3, 2), balance, **order)
    taken = [min(count, len(before)) for count in taken]
    places = np.arange(samples)
    seen = [
        place
        for rank, count in enumerate(taken)
        for step in range(count)
        for place in places[before.share(step, rank)]
    ]
    after = split_epoch(source, EpochRemainder(2, 3, rest_of(before, taken)), balance, **order)
    for rank in range(2):
        for step in range(after.batches(rank)):
            seen += places[after.share(step, rank)].tolist()
    assert sorted(seen) == list(range(samples))


@pytest.mark.parametrize("size", [2, 4, 16, 32])
@pytest.mark.parametrize("power", [1, 2])
def test_costs_of_sentences_differ_by_less_than_a_hundredth(size, power):
    costs = sentences(size * 8 * 60) ** power
    plan = plan_steps(len(costs), size, 8)
    found = loads(costs, plan, bucketing=choose_bucketing(costs, plan))
    assert found.mean(axis=1).sum() / found.max(axis=1).sum() >= 0.95
    assert np.median(found.max(axis=1) / found.mean(axis=1)) <= 1.01


@pytest.mark.parametrize(("size", "gain"), [(2, 1.3), (16, 2.4), (32, 3.0)])
def test_with_one_sample_per_rank_those_of_a_step_are_of_one_length(size, gain):
    costs = sentences(size * 300)
    plan = plan_steps(len(costs), size, 1)
    equal_counts = loads(costs, plan, bucketing=0.0)
    found = loads(costs, plan, bucketing=choose_bucketing(costs, plan))
    assert found.mean(axis=1).sum() / found.max(axis=1).sum() >= 0.95
    assert (
        equal_counts.max(axis=1).sum() / found.max(axis=1).sum() >= {2: 1.3, 16: 2.4, 32: 3}[size]
    )


def test_steps_stay_random_where_that_balances():
    costs = sentences(6400)
    assert choose_bucketing(costs, plan_steps(6400, 2, 32)) == 0.0
    assert choose_bucketing(costs, plan_steps(6400, 1, 1)) == 0.0
    assert choose_bucketing(np.zeros(6400), plan_steps(6400, 8, 1)) == 0.0
    assert choose_bucketing(costs, plan_steps(6400, 8, 1)) > 0.9


def test_bucketing_sorts_the_samples_of_steps_and_not_the_steps():
    costs = sentences(400)
    plan = plan_steps(400, 2, 4)
    spreads, means = {}, {}
    for bucketing in (0.0, 0.7, 1.0):
        epoch = plan_balanced(costs, plan, bucketing=bucketing, draw=np.random.default_rng(1))
        steps = [costs[epoch.step(step)] for step in range(len(epoch))]
        spreads[bucketing] = np.mean([step.std() for step in steps])
        means[bucketing] = [step.mean() for step in steps]
    assert spreads[0.0] > 1.5 * spreads[0.7] > 3 * spreads[1.0]
    assert means[1.0] != sorted(means[1.0])
    calm = plan_balanced(costs, plan, bucketing=1.0, draw=None)
    assert [costs[calm.step(step)].mean() for step in range(len(calm))] == sorted(means[1.0])


def test_the_short_step_does_not_always_have_the_longest_samples():
    costs = np.arange(25.0)
    plan = plan_steps(25, 2, 4)  # 8, 8, and the last one has 9
    found = {
        int(plan_balanced(costs, plan, bucketing=1.0, draw=np.random.default_rng(n)).step(2).max())
        for n in range(20)
    }
    assert len(found) > 1


def test_epochs_differ_and_repeat_by_seed():
    source, balance = ArraySource(np.arange(60)), Balance(sentences(60))

    def share(seed, epoch):
        order = {"seed": seed, "epoch": epoch}
        return split_epoch(source, EpochRemainder(2, 3), balance, **order).share(1, 0).tolist()

    assert share(1, 0) == share(1, 0) != share(1, 1)
    assert share(1, 0) != share(2, 0)


def test_a_bucketing_that_cannot_be_and_ranks_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"bucketing is 1.5, expected 0 .* to 1"):
        Balance(np.ones(3), 1.5)
    split = split_epoch(ArraySource(np.arange(9)), EpochRemainder(3, 1), Balance(np.ones(9)))
    with pytest.raises(CheckpointError, match=r"2 ranks took batches .* split among 3"):
        rest_of(split, [1, 1])


@given(
    costs=st.lists(st.floats(1, 6), min_size=40, max_size=120),
    speeds=st.lists(st.sampled_from([0.5, 1.0, 1.0, 2.0, 4.0]), min_size=2, max_size=4),
)
def test_a_slower_rank_gets_less_in_proportion(costs, speeds):
    costs, speeds = np.array(costs), np.array(speeds)
    found = np.bincount(split_step(costs, len(speeds), speeds), costs, len(speeds)) / speeds
    ideal = costs.sum() / speeds.sum()
    assert found.max() <= ideal + 2 * costs.max() / speeds.min()
    if len(costs) >= 20 * len(speeds):
        assert found.max() <= 1.3 * ideal


def test_speeds_count_from_the_step_that_all_have_yet_to_prepare():
    table = SpeedTable(ahead=3)
    assert table.at(0) is None
    table.note(4, np.array([2.0, 1.0]))
    assert table.at(6) is None
    assert table.at(7).tolist() == pytest.approx([4 / 3, 2 / 3])
    table.note(5, np.array([2.02, 1.0]))  # no change worth speaking of
    table.note(6, np.array([1.0, 1.0]))
    assert table.at(8)[0] > 1
    assert table.at(9).tolist() == [1.0, 1.0]
    table.begin_epoch()
    assert table.at(0).tolist() == [1.0, 1.0]


@given(
    samples=st.integers(6, 120),
    size=st.integers(1, 4),
    budget=st.floats(5, 400),
    shuffle=st.booleans(),
    bucketing=st.sampled_from([None, 0.0, 1.0]),
)
def test_a_budget_says_what_a_step_costs(samples, size, budget, shuffle, bucketing):
    costs = sentences(samples)
    source, balance = ArraySource(np.arange(samples)), Balance(costs, bucketing, budget)
    whole = EpochRemainder(size, balance.usual_batch_size())
    split = split_epoch(source, whole, balance, seed=1, epoch=0, shuffle=shuffle)
    order = np.arange(samples) if not shuffle else epoch_order(samples, 1, 0)
    seen, too_much, fewest = [], 0, smallest_step(size, balance.usual_batch_size())
    for step in range(len(split)):
        shares = [order[split.share(step, rank)] for rank in range(size)]
        members = np.concatenate(shares)
        seen += members.tolist()
        assert min(map(len, shares)) >= 1
        above = costs[members].sum() > budget * size * (1 + 1e-6)
        too_much += above and len(members) > fewest
    assert sorted(seen) == list(range(samples))
    assert too_much <= 1  # what is left over at the end joins a step


def test_a_budget_fills_steps():
    costs = sentences(4000)
    balance = Balance(costs, budget=400.0)
    whole = EpochRemainder(4, balance.usual_batch_size())
    split = split_epoch(ArraySource(np.arange(4000)), whole, balance, shuffle=False)
    loads = np.array(
        [[costs[split.share(step, rank)].sum() for rank in range(4)] for step in range(len(split))]
    )
    assert np.median(loads) == pytest.approx(400, rel=0.05)
    assert loads.max() <= 1.05 * 400
    with pytest.raises(ConfigError, match="tokens_per_batch is 0"):
        Balance(costs, budget=0.0)


def padded(costs, ranks, size, slowness=None):
    """The cost of each rank when each of its samples costs as much as its largest."""
    shares = [costs[ranks == rank] for rank in range(size)]
    found = np.array([len(share) * share.max(initial=0.0) for share in shares])
    return found if slowness is None else found * slowness


@given(
    costs=st.lists(st.integers(0, 30), min_size=1, max_size=9),
    size=st.integers(1, 3),
    half=st.booleans(),
)
def test_padded_batches_are_cut_where_the_slowest_rank_needs_least(costs, size, half):
    costs = np.array(costs, float)
    speeds = np.where(np.arange(size) == 1, 0.5, 1.0) if half else None
    slowness = None if speeds is None else speeds.mean() / speeds
    ranks = split_padded(costs, size, speeds)
    counts = np.bincount(ranks, minlength=size)
    least = 2 if len(costs) >= 2 * size else 1
    assert counts.sum() == len(costs)
    assert sorted(counts)[-min(size, len(costs)) :][0] >= min(least, len(costs))
    if len(costs) < size or half:
        return
    order = np.sort(costs)[::-1]
    cuts = combinations(range(least, len(costs)), size - 1)
    edges = [(0, *cut, len(costs)) for cut in cuts]
    whole = [e for e in edges if all(b - a >= least for a, b in pairwise(e))]
    best = min(max((b - a) * order[a] for a, b in pairwise(e)) for e in whole)
    assert padded(costs, ranks, size, slowness).max() == pytest.approx(best)


@pytest.mark.parametrize(("size", "batch"), [(1, 8), (2, 8), (2, 32), (4, 8)])
def test_little_is_padded_where_batches_are(size, batch):
    costs = sentences(size * batch * 40)
    plan = plan_steps(len(costs), size, batch)

    def efficiency(is_padded):
        bucketing = choose_bucketing(costs, plan, is_padded)
        options = {"bucketing": bucketing, "draw": np.random.default_rng(1)}
        epoch = plan_balanced(costs, plan, **options, padded=is_padded)
        slowest = 0.0
        for step in range(len(epoch)):
            shares = [costs[share] for share in epoch.split(step)]
            slowest += max(len(share) * share.max() for share in shares)
        return costs.sum() / size / slowest

    assert efficiency(True) > 0.85
    assert efficiency(True) > 1.2 * efficiency(False)


def test_a_budget_holds_for_padded_batches():
    costs = sentences(3000)
    balance = Balance(costs, budget=400.0, padded=True)
    whole = EpochRemainder(4, balance.usual_batch_size())
    split = split_epoch(ArraySource(np.arange(3000)), whole, balance, shuffle=False)
    shares = [[costs[split.share(step, rank)] for rank in range(4)] for step in range(len(split))]
    loads = np.array([[len(share) * share.max() for share in step] for step in shares])
    assert sum(len(share) for step in shares for share in step) == 3000
    assert np.percentile(loads, 95) <= 1.1 * 400
    assert np.median(loads) > 0.7 * 400


def test_steps_of_similar_samples_have_equal_weight():
    """Or a token would count more in a step of short sentences, where there are fewer."""
    costs = sentences(3000)
    source, whole = ArraySource(np.arange(3000)), EpochRemainder(2, 8)

    def totals(**options):
        split = split_epoch(source, whole, Balance(costs, **options), shuffle=False)
        steps = range(len(split))
        shares = [np.concatenate([split.share(s, 0), split.share(s, 1)]) for s in steps]
        assert sorted(np.concatenate(shares)) == list(range(3000))
        return np.array([costs[share].sum() for share in shares])

    by_count, by_weight = totals(bucketing=1.0), totals(bucketing=1.0, weights=costs)
    near = [np.mean(np.abs(one / np.median(one) - 1) < 0.1) for one in (by_count, by_weight)]
    assert near[0] < 0.4 < 0.85 < near[1]  # the longest sentences are more than a step's share
    assert len(by_weight) == pytest.approx(len(by_count), rel=0.1)
    assert totals(bucketing=0.0, weights=costs).tolist() == totals(bucketing=0.0).tolist()
