"""An interrupted epoch: whoever goes on, every sample comes exactly once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data import ArraySource, EpochRemainder, Shard, Stream, training_batches
from paceline.data.sampling.split import CountSplit, rest_of
from paceline.errors import CheckpointError


def arrays(samples):
    return ArraySource(np.arange(samples), np.arange(samples))


def stream(samples):
    return Stream(lambda: ((number, number) for number in range(samples)))


def take(source, remainder, rank, taken, most):
    """The next batches of one rank, `most` at most."""
    shard = Shard(rank, remainder.size)
    options = {"remainder": remainder, "taken": taken, "seed": 4, "epoch": 2, "prefetch": 0}
    batches = training_batches(source, shard=shard, batch_size=remainder.batch_size, **options)
    return [batch for batch, _ in zip(batches, range(most), strict=False)]


interruptions = st.lists(
    st.tuples(
        st.integers(1, 5),  # ranks
        st.integers(1, 6),  # samples per batch
        st.lists(st.integers(0, 4), min_size=5, max_size=5),  # batches that each rank takes
    ),
    max_size=5,
)


@given(samples=st.integers(5, 90), interruptions=interruptions)
def test_every_sample_comes_once_whoever_goes_on(samples, interruptions):
    source, seen, remainder = arrays(samples), [], EpochRemainder(3, 4)
    for size, batch_size, most in [*interruptions, (2, 4, [samples] * 5)]:
        found = [take(source, remainder, rank, 0, most[rank]) for rank in range(remainder.size)]
        seen += [index for batches in found for batch in batches for index in batch.indices]
        ranges = rest_of(CountSplit(remainder, samples), [len(batches) for batches in found])
        remainder = EpochRemainder(size, batch_size, ranges)
    for rank in range(remainder.size):
        seen += [i for batch in take(source, remainder, rank, 0, samples) for i in batch.indices]
    assert sorted(seen) == list(range(samples))


@given(
    samples=st.integers(5, 60), size=st.integers(1, 5), taken=st.integers(0, 3), more=st.integers(0)
)
def test_as_many_ranks_go_on_with_the_same_shares(samples, size, taken, more):
    remainder = EpochRemainder(size, 3, ((2, samples),))
    for rank in range(size):
        whole = take(arrays(samples), remainder, rank, 0, samples)
        late = take(arrays(samples), remainder, rank, taken, samples)
        assert [b.indices.tolist() for b in late] == [b.indices.tolist() for b in whole[taken:]]
        assert len(whole) == CountSplit(remainder, samples).batches(rank)


@given(samples=st.integers(4, 60), steps=st.integers(0, 4), size=st.integers(1, 5))
def test_the_rest_of_a_stream_comes_once(samples, steps, size):
    before = EpochRemainder(2, 4)
    found = [take(stream(samples), before, rank, 0, samples) for rank in range(2)]
    steps = min(steps, len(found[0]) - 1)  # a pause after the last step is the epoch's end
    seen = [i for batches in found for batch in batches[:steps] for i in batch.indices]
    remainder = EpochRemainder(size, 3, before.rest_of_stream([steps] * 2))
    if not steps and size > samples:
        return
    for rank in range(size):
        seen += [
            i for batch in take(stream(samples), remainder, rank, 0, samples) for i in batch.indices
        ]
    assert sorted(seen) == list(range(samples))


def test_nobody_is_left_with_a_single_sample():
    remainder = EpochRemainder(8, 4, ((91, 100),))
    counts = [[b.samples for b in take(arrays(100), remainder, rank, 0, 9)] for rank in range(8)]
    assert counts == [[3], [2], [2], [2], [], [], [], []]


def test_ranks_at_different_places_of_a_stream_are_refused():
    with pytest.raises(CheckpointError, match="start 2 ranks"):
        EpochRemainder(2, 4).rest_of_stream([1, 2])
