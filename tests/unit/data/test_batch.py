"""A batch can be cut, and can say which samples it holds."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.data import Batch
from paceline.errors import ConfigError, DataError


def numbered(samples: int) -> Batch:
    return Batch(np.arange(samples), np.arange(samples) * 2, samples, np.arange(samples) + 100)


@given(st.integers(1, 50), st.integers(1, 60))
def test_split_gives_at_most_so_many_nearly_equal_parts(samples, parts):
    pieces = numbered(samples).split(parts)
    sizes = [piece.samples for piece in pieces]
    assert len(pieces) == min(samples, parts)
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert np.concatenate([piece.inputs for piece in pieces]).tolist() == list(range(samples))
    for piece in pieces:
        assert piece.targets.tolist() == (piece.inputs * 2).tolist()
        assert piece.indices.tolist() == (piece.inputs + 100).tolist()
        assert len(piece.inputs) == piece.samples


def test_split_into_one_returns_the_batch_itself():
    batch = numbered(5)
    assert batch.split(1)[0] is batch


def test_split_gives_views():
    batch = numbered(6)
    batch.split(2)[1].inputs[:] = -1
    assert batch.inputs.tolist() == [0, 1, 2, -1, -1, -1]


def test_split_handles_nested_arrays_and_tensors():
    Pair = namedtuple("Pair", "left right")
    inputs = {
        "a": torch.arange(4),
        "b": (np.arange(4), Pair(np.zeros((4, 2)), ["p", "q", "r", "s"])),
    }
    first, second = Batch(inputs, None, 4).split(2)
    assert first.inputs["a"].tolist() == [0, 1]
    assert second.inputs["b"][0].tolist() == [2, 3]
    assert second.inputs["b"][1].left.shape == (2, 2)
    assert second.inputs["b"][1].right == ["r", "s"]
    assert second.targets is None
    assert second.indices is None


def test_split_refuses_arrays_whose_first_axis_is_not_samples():
    with pytest.raises(DataError, match=r"4 samples.*leading length 7"):
        Batch((np.zeros(4), np.zeros(7)), None, 4).split(2)


def test_split_refuses_less_than_one_part():
    with pytest.raises(ConfigError, match="0 parts"):
        numbered(4).split(0)


def test_where_names_the_samples():
    many = Batch(None, None, 64, np.array([17, 4, 903] + [0] * 61))
    assert many.where() == "samples 17, 4, 903, ... (64 in all)"
    assert Batch(None, None, 2, np.array([5, 6])).where() == "samples 5, 6"
    assert Batch(None, None, 1, np.array([5])).where() == "sample 5"
    assert Batch(None, None, 3).where() == "3 samples at unknown positions"


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_a_batch_says_which_of_its_samples_are_not_finite(make):
    rows = np.ones((5, 2, 2), np.float32)
    rows[1, 0, 1], rows[3, 1, 0] = np.nan, np.inf
    batch = Batch(
        {"x": make(rows), "n": make(np.arange(5))}, make(np.ones(5)), 5, np.arange(5) + 10
    )
    assert batch.where().endswith("(5 in all), with NaN or infinity in samples 11, 13")
    batch.indices = None
    assert batch.where() == "5 samples at unknown positions, 2 of which are not finite"


def test_words_are_no_numbers_that_could_be_finite():
    assert Batch(np.array(["a", "b"]), None, 2, np.arange(2)).where() == "samples 0, 1"
