"""One pass over the data by all ranks."""

import threading
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from paceline.data import (
    ArraySource,
    DatasetSource,
    Shard,
    Stream,
    as_source,
    epoch_order,
    evaluation_batches,
    plan_steps,
    training_batches,
)
from paceline.errors import ConfigError, DataError


def arrays(samples: int) -> ArraySource:
    return ArraySource(np.arange(samples) * 10, np.arange(samples))


def stream(samples: int) -> Stream:
    return Stream(lambda: ((number * 10, number) for number in range(samples)))


def train(source, size, batch_size, **options):
    return [
        list(training_batches(source, shard=Shard(rank, size), batch_size=batch_size, **options))
        for rank in range(size)
    ]


def evaluate(source, size, batch_size, **options):
    return [
        list(evaluation_batches(source, shard=Shard(rank, size), batch_size=batch_size, **options))
        for rank in range(size)
    ]


def seen(ranks):
    return [int(target) for batches in ranks for batch in batches for target in batch.targets]


@pytest.mark.parametrize("make", [arrays, stream])
@given(samples=st.integers(1, 120), size=st.integers(1, 6), batch_size=st.integers(1, 9))
def test_training_uses_every_sample_exactly_once_in_equal_steps(make, samples, size, batch_size):
    samples = max(samples, size)
    ranks = train(make(samples), size, batch_size, seed=3, epoch=1, prefetch=0)
    assert sorted(seen(ranks)) == list(range(samples))
    assert {len(batches) for batches in ranks} == {len(plan_steps(samples, size, batch_size))}
    for batch in (batch for batches in ranks for batch in batches):
        assert batch.samples == len(batch.inputs) == len(batch.targets) >= 1
        assert batch.targets.tolist() == batch.indices.tolist()
        assert batch.inputs.tolist() == (batch.indices * 10).tolist()


@given(samples=st.integers(1, 120), size=st.integers(1, 6), batch_size=st.integers(1, 9))
def test_a_stream_is_sharded_as_an_unshuffled_source_is(samples, size, batch_size):
    samples = max(samples, size)
    expected = train(arrays(samples), size, batch_size, shuffle=False)
    found = train(stream(samples), size, batch_size, prefetch=0)
    for ours, theirs in zip(found, expected, strict=True):
        assert [b.indices.tolist() for b in ours] == [b.indices.tolist() for b in theirs]


@pytest.mark.parametrize("make", [arrays, stream])
@given(samples=st.integers(1, 90), size=st.integers(1, 7), batch_size=st.integers(1, 9))
def test_evaluation_uses_every_sample_exactly_once(make, samples, size, batch_size):
    ranks = evaluate(make(samples), size, batch_size, prefetch=0)
    assert Counter(seen(ranks)) == Counter(range(samples))
    for batches in ranks:
        assert all(1 <= batch.samples <= batch_size for batch in batches)
        places = [place for batch in batches for place in batch.indices.tolist()]
        assert places == sorted(places)
        assert places == [int(target) for batch in batches for target in batch.targets]


def test_evaluation_shares_are_contiguous_for_sources_and_in_turns_for_streams():
    assert [seen([batches]) for batches in evaluate(arrays(5), 2, 2)] == [[0, 1, 2], [3, 4]]
    assert [seen([batches]) for batches in evaluate(stream(5), 2, 2)] == [[0, 2, 4], [1, 3]]
    assert [len(batches) for batches in evaluate(arrays(1), 3, 2)] == [1, 0, 0]


def test_the_world_batch_does_not_depend_on_the_number_of_ranks():
    one = train(arrays(56), 1, 12, seed=5, epoch=2)[0]
    four = train(arrays(56), 4, 3, seed=5, epoch=2)
    for step in range(5):
        joined = [int(t) for batches in four for t in batches[step].targets]
        assert joined == one[step].targets.tolist()


def test_epochs_follow_their_order():
    ranks = train(arrays(20), 1, 7, seed=9, epoch=4)
    assert seen(ranks) == epoch_order(20, 9, 4).tolist()
    assert seen(train(arrays(20), 1, 7, seed=9, epoch=5)) != seen(ranks)
    assert seen(train(arrays(20), 1, 7, shuffle=False)) == list(range(20))


@pytest.mark.parametrize("make", [arrays, stream])
@pytest.mark.parametrize("samples", [24, 25, 27])
def test_an_epoch_entered_later_goes_on_as_if_uninterrupted(make, samples):
    whole = train(make(samples), 2, 4, seed=1)
    for taken in range(len(whole[0])):
        rest = train(make(samples), 2, 4, seed=1, taken=taken)
        for late, full in zip(rest, whole, strict=True):
            assert [b.indices.tolist() for b in late] == [b.indices.tolist() for b in full[taken:]]
            assert [b.inputs.tolist() for b in late] == [b.inputs.tolist() for b in full[taken:]]


def test_a_stream_that_became_shorter_is_refused():
    with pytest.raises(DataError, match="ended after 12 samples, and 16 were trained on"):
        train(stream(12), 2, 4, taken=2)


@pytest.mark.parametrize("make", [arrays, stream])
def test_more_ranks_than_samples_are_refused(make):
    for rank in range(8):
        with pytest.raises(DataError, match="8 ranks but only 5 training samples"):
            list(training_batches(make(5), shard=Shard(rank, 8), batch_size=2))


def test_an_empty_stream_is_refused():
    with pytest.raises(DataError, match="no training samples"):
        train(stream(0), 1, 4)
    with pytest.raises(DataError, match="stream holds no samples"):
        evaluate(stream(0), 1, 4)


@pytest.mark.parametrize("make", [arrays, stream])
@pytest.mark.parametrize("batches", [training_batches, evaluation_batches])
def test_a_batch_size_of_zero_is_refused_at_once(make, batches):
    with pytest.raises(ConfigError, match="batch_size is 0"):
        batches(make(5), shard=Shard(0, 1), batch_size=0)


@pytest.mark.parametrize("prefetch", [None, 0, 1, 3])
def test_prefetching_changes_no_batch(prefetch):
    data = TensorDataset(torch.arange(20), torch.arange(20))
    source = as_source(data)
    assert isinstance(source, DatasetSource)
    found = train(source, 2, 3, seed=2, prefetch=prefetch)
    expected = train(arrays(20), 2, 3, seed=2)
    assert seen(found) == seen(expected)
    assert seen(evaluate(source, 2, 3, prefetch=prefetch)) == list(range(20))


def test_only_what_is_not_cheap_is_prefetched():
    def reader(source, **options):
        names = []
        take = source.take

        def spy(indices):
            names.append(threading.current_thread().name)
            return take(indices)

        source.take = spy
        list(training_batches(source, shard=Shard(0, 1), batch_size=4, **options))
        return set(names)

    assert reader(arrays(8)) == {"MainThread"}
    assert reader(arrays(8), prefetch=2) == {"paceline-prefetch"}
    assert reader(DatasetSource([1, 2, 3])) == {"paceline-prefetch"}
    assert reader(DatasetSource([1, 2, 3]), prefetch=0) == {"MainThread"}
