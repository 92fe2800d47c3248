"""Trees are parted and joined without losing a bit."""

import json
import math
from enum import IntEnum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trees import bits, trees

from paceline.checkpoint.tree import MAX_DEPTH, TreeError, join, split


@settings(max_examples=300, deadline=None)
@given(trees)
def test_any_tree_comes_back_through_strict_json(tree):
    found, values = split(tree)
    text = json.dumps(values, allow_nan=False)
    text.encode()
    assert bits(join(found, json.loads(text))) == bits(tree)


@settings(max_examples=300, deadline=None)
@given(trees)
def test_the_names_of_arrays_are_utf8_and_free_for_safetensors(tree):
    found, _ = split(tree)
    for key in found:
        key.encode()
        assert key != "__metadata__"


def test_arrays_are_named_by_their_path():
    tree = {"model": {"a/b": np.zeros(1)}, "list": [{"c": np.ones(2)}], "step": 3, "empty": {}}
    found, values = split(tree)
    assert list(found) == ["model/a~1b", "list/0/c"]
    assert found["model/a~1b"] is tree["model"]["a/b"]
    assert values["step"] == 3
    assert values["empty"] == {}


def test_the_name_that_safetensors_keeps_for_itself_is_free():
    tree = {"__metadata__": np.zeros(1), "~__metadata__": np.ones(1), "a": {"__metadata__": None}}
    found, values = split(tree)
    assert list(found) == ["~__metadata__", "~0__metadata__"]
    assert bits(join(found, values)) == bits(tree)


def test_numbers_that_are_not_finite_are_spelled_out():
    _, values = split({"a": math.nan, "b": [math.inf, -math.inf], "$float": "own"})
    assert values == {
        "a": {"$float": "nan"},
        "b": [{"$float": "inf"}, {"$float": "-inf"}],
        "$$float": "own",
    }


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "leaf",
    [
        np.float64(1),
        np.float32(1),
        np.int64(1),
        np.bool_(True),
        np.str_("a"),
        Colour.RED,
        (1, 2),
        {1, 2},
        b"bytes",
        1j,
        {1: "key"},
        np.array(["text"]),
        np.array([None]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.ma.masked_array([1.0, 2.0], mask=[True, False]),
    ],
    ids=repr,
)
def test_what_would_not_come_back_the_same_is_refused(leaf):
    for tree in ({"here": leaf}, {"here": [leaf]}, {"here": {"deeper": leaf}}):
        with pytest.raises(TreeError, match="here"):
            split(tree)


def test_a_tree_is_a_dict():
    with pytest.raises(TreeError, match="list"):
        split([1])


def nest(depth):
    tree = {}
    for _ in range(depth):
        tree = {"a": tree}
    return tree


def test_depth_is_limited_on_both_sides():
    assert join(*split(nest(MAX_DEPTH))) == nest(MAX_DEPTH)
    with pytest.raises(TreeError, match="deeper than 100"):
        split(nest(MAX_DEPTH + 1))
    with pytest.raises(ValueError, match="deeper than 100"):
        join({}, nest(MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([], "outermost value is a list"),
        ({"$float": "nan"}, "outermost value is a float"),
        ({"a": {"$float": "1.5"}}, "'1.5' is not one of nan"),
        ({"a": {"$float": 1}}, "before a int"),
        ({"a": {"$int": "x"}}, "invalid literal"),
        ({"a": {"$array": "b"}}, "'b' is missing"),
        ({"a": {"$array": "w"}, "b": {"$array": "w"}}, "'w' is missing or named twice"),
        ({"a": 1}, "'w' has no place"),
        ({"w": {"$array": "w"}, "$other": 1}, r"'\$other' is unknown"),
    ],
)
def test_values_that_come_from_no_tree_are_value_errors(values, match):
    with pytest.raises(ValueError, match=match):
        join({"w": np.zeros(1)}, values)


words = st.sampled_from(["nan", "w", "~u", "0x1"])
marks = st.sampled_from(["$array", "$float", "$int", "$str", "$~", "$"])
marked = st.dictionaries(marks, words | st.none(), min_size=1, max_size=2)
junk = st.recursive(
    st.none() | st.floats() | marked,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(marks | words, inner, max_size=2),
)


@settings(max_examples=300)
@given(st.dictionaries(words, junk, max_size=2) | junk)
def test_joining_raises_nothing_but_value_errors(values):
    try:
        tree = join({"w": np.zeros(1)}, values)
    except ValueError:
        return
    assert type(tree) is dict
