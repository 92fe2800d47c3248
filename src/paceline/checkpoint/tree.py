"""Trees of state, split into arrays and strict JSON, and joined again without losing a bit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Protocol, TypeVar

import numpy as np

from paceline.core.safetensors import DTYPES, Array
from paceline.core.trees import Tree

T = TypeVar("T")


class Saved(Protocol[T]):
    """Something that is a part of a checkpoint by itself."""

    def snapshot(self) -> T:
        """A tree, or a value that a tree can hold; arrays in it are copies."""

    def restore(self, saved: T) -> None:
        """Go on from what `snapshot` gave."""


MAX_DEPTH = 100
"""Deeper trees are refused: JSON parsers limit nesting, each at another depth."""
MAX_PLAIN_BITS = 1024
"""Larger integers are written in hex: Python refuses decimal ones of thousands of digits."""
SURROGATE = re.compile("[\ud800-\udfff]")


class TreeError(TypeError):
    """A value that a tree cannot hold."""


def as_plain(value: object) -> object:
    """The value with Python's own numbers for numpy's scalars and lists for tuples.

    >>> as_plain({"best": np.float64(0.5), "seen": (np.int64(3), None)})
    {'best': 0.5, 'seen': [3, None]}
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    return [as_plain(item) for item in value] if isinstance(value, list | tuple) else value


def split(tree: Tree) -> tuple[dict[str, Array], object]:
    """The arrays by their paths, and the rest as strict JSON with a mark in each array's place.

    >>> split({"w": np.zeros(2), "loss": math.inf})
    ({'w': array([0., 0.])}, {'w': {'$array': 'w'}, 'loss': {'$float': 'inf'}})
    """
    if type(tree) is not dict:
        raise TreeError(f"a tree is a dict, not {type(tree).__name__}")
    arrays: dict[str, Array] = {}
    return arrays, _encode(tree, (), arrays)


def join(arrays: Mapping[str, Array], values: object) -> Tree:
    """The tree that was split into these; a ValueError says why they cannot come from one.

    >>> join({}, {"loss": {"$float": "inf"}})
    {'loss': inf}
    """
    left = dict(arrays)
    tree = _decode(values, left, 0)
    if type(tree) is not dict:
        raise ValueError(f"the outermost value is a {type(tree).__name__}, not a dict")
    if left:
        raise ValueError(f"the array {min(left)!r} has no place among the values")
    return tree


def _encode(value: object, path: tuple[str, ...], arrays: dict[str, Array]) -> object:
    # Types are compared exactly: np.float64 is a float and an enum may be an int, but neither
    # would come back as what it was.
    if len(path) > MAX_DEPTH:
        raise TreeError(f"the tree is deeper than {MAX_DEPTH} levels")
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise TreeError(f"the key {key!r} at {_join_path(path)!r} is not a str")
        return {
            _encode_key(key): _encode(item, (*path, key), arrays) for key, item in value.items()
        }
    if type(value) is list:
        return [_encode(item, (*path, str(i)), arrays) for i, item in enumerate(value)]
    if type(value) is np.ndarray or type(value) is np.memmap:
        if value.dtype.name not in DTYPES:
            raise TreeError(
                f"{_join_path(path)!r} has dtype {value.dtype}, expected one of {', '.join(DTYPES)}"
            )
        arrays[_join_path(path)] = value
        return {"$array": _join_path(path)}
    if type(value) is float and not math.isfinite(value):
        return {"$float": str(value)}
    if type(value) is int and value.bit_length() > MAX_PLAIN_BITS:
        return {"$int": hex(value)}
    if type(value) is str and SURROGATE.search(value):
        return {"$str": _escape(value)}
    if value is not None and type(value) not in (bool, int, float, str):
        raise TreeError(
            f"{_join_path(path)!r} is a {type(value).__name__}, which a tree cannot hold; make it "
            "an array or a plain Python value"
        )
    return value


def _decode(value: object, left: dict[str, Array], depth: int) -> object:
    if depth > MAX_DEPTH:
        raise ValueError(f"the values are deeper than {MAX_DEPTH} levels")
    if isinstance(value, list):
        return [_decode(item, left, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(mark, text)] = value.items()
        if mark in ("$array", "$float", "$int", "$str"):
            return _decode_mark(mark, text, left)
    return {_decode_key(key): _decode(item, left, depth + 1) for key, item in value.items()}


def _decode_mark(mark: str, text: object, left: dict[str, Array]) -> object:
    if not isinstance(text, str):
        raise ValueError(f"{mark} stands before a {type(text).__name__}, expected a str")
    if mark == "$array":
        if text not in left:
            raise ValueError(f"the array {text!r} is missing or named twice")
        return left.pop(text)
    if mark == "$int":
        return int(text, 16)
    if mark == "$str":
        return _unescape(text)
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(f"{text!r} is not one of nan, inf, -inf")
    return float(text)


def _encode_key(key: str) -> str:
    """Marks begin with one "$": so a key's own "$" is doubled."""
    if SURROGATE.search(key):
        return "$~" + _escape(key)
    return "$" + key if key.startswith("$") else key


def _decode_key(key: str) -> str:
    if key.startswith("$~"):
        return _unescape(key[2:])
    if key.startswith("$$") or not key.startswith("$"):
        return key.removeprefix("$")
    raise ValueError(f"the mark {key!r} is unknown")


def _join_path(path: tuple[str, ...]) -> str:
    joined = "/".join(_escape(key) for key in path)
    # The one name that safetensors keeps for itself.
    return "~" + joined if joined == "__metadata__" else joined


def _escape(text: str) -> str:
    """Without "/" and lone surrogates, which are no UTF-8 and come in pairs out of JSON as one."""
    text = text.replace("~", "~0").replace("/", "~1")
    return SURROGATE.sub(lambda match: f"~u{ord(match[0]):04x}", text)


def _unescape(text: str) -> str:
    text = re.sub("~u(d[89a-f][0-9a-f]{2})", lambda match: chr(int(match[1], 16)), text)
    return text.replace("~1", "/").replace("~0", "~")
