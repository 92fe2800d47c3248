"""What samples cost, from all that a user may say."""

import numpy as np
import pytest

from paceline.data import ArraySource, as_source
from paceline.data.cost import check_form, read_numbers
from paceline.errors import ConfigError, DataError

WORDS = [[3, 1, 4, 1], [5], [9, 2]]


class Pairs:
    """A dataset of (sentence, label)."""

    def __len__(self):
        return len(WORDS)

    def __getitem__(self, number):
        return np.array(WORDS[number]), number


class Named:
    def __len__(self):
        return 3

    def __getitem__(self, number):
        return {"tokens": WORDS[number], "hard": number * 10}


@pytest.mark.parametrize(
    ("data", "cost", "expected"),
    [
        (WORDS, "length", [4, 1, 2]),
        (Pairs(), "length", [4, 1, 2]),
        (Named(), "length", [4, 1, 2]),
        (["four", "a", "ab"], "length", [4, 1, 2]),
        ((np.array([*map(np.array, WORDS)], object), np.arange(3)), "length", [4, 1, 2]),
        (Pairs(), {"power": 2}, [16, 1, 4]),
        (Named(), "hard", [0, 10, 20]),
        (Named(), {"of": "hard", "power": 0.5}, [0, 10**0.5, 20**0.5]),
        (Pairs(), lambda sample: sample[1] + 0.5, [0.5, 1.5, 2.5]),
        ((np.ones((3, 2)), np.arange(3)), lambda sample: sample[1], [0, 1, 2]),
        ({"x": np.ones((3, 2)), "cost": np.arange(3)}, "cost", [0, 1, 2]),
        (WORDS, [1, 2, 3.5], [1, 2, 3.5]),
        (WORDS, np.array([0, 0, 7]), [0, 0, 7]),
    ],
)
def test_costs(data, cost, expected):
    check_form(cost)
    assert read_numbers(as_source(data), cost).tolist() == expected


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        ([1, 2], "cost has 2 numbers, and the data 3 samples"),
        ([1, np.nan, np.nan], r"cost of sample 1 is nan \(and of 1 others\), expected a finite"),
        ([1, 2, -3], r"cost of sample 2 is -3.0, expected a finite number of 0 or more"),
        ([[1], [2], [3]], r"numbers of shape \(3, 1\)"),
        (lambda sample: 1 / 0, "cost of sample 0 of list: ZeroDivisionError"),
        ("colour", "there is no entry 'colour'"),
        ({"of": "length", "power": -400}, "cost of sample .* expected a finite"),
    ],
)
def test_costs_that_cannot_be(cost, text):
    data = [[1] * 4, [], [5]] if isinstance(cost, dict) else WORDS
    with np.errstate(all="ignore"), pytest.raises(DataError, match=text):
        read_numbers(as_source(data), cost)


@pytest.mark.parametrize("cost", [{"power": "two"}, {"powre": 2}, {"power": True}, [object()]])
def test_forms_that_are_none(cost):
    with pytest.raises(ConfigError, match=r"expected: length, the name of"):
        check_form(cost)


def test_dense_arrays_have_one_length():
    with pytest.raises(DataError, match=r"all samples of arrays have the same.*as an array"):
        read_numbers(ArraySource(np.ones((3, 7))), "length")
    with pytest.raises(DataError, match="has no array of this name"):
        read_numbers(ArraySource(np.ones((3, 7))), "words")
