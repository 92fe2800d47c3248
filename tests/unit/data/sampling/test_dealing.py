"""Epochs cut into numbered micro-batches: each sample in one of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data import EpochRemainder
from paceline.data.sampling.dealing import DealtEpoch, DealtSplit
from paceline.data.sampling.split import rest_of


def edges_of(samples, step):
    return [*range(0, samples, step), samples]


@given(
    samples=st.integers(1, 90),
    step=st.integers(1, 30),
    micro=st.integers(1, 9),
    costly=st.booleans(),
)
def test_every_sample_is_in_one_micro_batch_of_its_step(samples, step, micro, costly):
    order = np.random.default_rng(samples).permutation(samples)
    costs = np.random.default_rng(step).integers(0, 5, samples).astype(float) if costly else None
    epoch = DealtEpoch(order, edges_of(samples, step), micro, costs)
    numbers = []
    for at in range(len(epoch)):
        numbers += epoch.numbers(at)
        members = [epoch.places(number) for number in epoch.numbers(at)]
        found = np.concatenate(members)
        assert sorted(found) == sorted(order[at * step : (at + 1) * step])
        assert all(1 <= len(one) <= micro for one in members)
        assert [len(one) for one in members[:-1]] == [micro] * (len(members) - 1)
        if costs is not None:
            in_order = [costs[np.flatnonzero(order == place)[0]] for place in found]
            assert in_order == sorted(in_order, reverse=True)
    assert numbers == list(range(epoch.total))


@pytest.mark.parametrize("taken", [0, 2, 4])
def test_what_is_left_when_steps_have_been_taken(taken):
    order = np.random.default_rng(1).permutation(17)
    split = DealtSplit(DealtEpoch(order, edges_of(17, 4), 3), size=3, samples=17)
    left = EpochRemainder(2, 4, rest_of(split, [taken] * 3)).pick(np.arange(17))
    assert sorted(left) == sorted(order[taken * 4 :])


def test_an_epoch_of_nothing_has_no_step():
    epoch = DealtEpoch(np.arange(0), [0], 3)
    assert (len(epoch), epoch.total) == (0, 0)
