"""Nested arrays: tuples, lists and dicts that hold numpy arrays, torch tensors or the like."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def is_array(value: object) -> bool:
    """Whether it has a shape: numpy arrays and scalars, torch tensors, and the like."""
    return hasattr(value, "shape")


def is_nest(value: object) -> bool:
    """Whether it holds arrays rather than being one; a list of plain values is array-like."""
    if isinstance(value, (Mapping, tuple)):
        return True
    return isinstance(value, list) and any(is_array(v) or is_nest(v) for v in value)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The same structure, with every leaf replaced by function(leaf)."""
    if isinstance(value, Mapping):
        return {key: map_leaves(function, item) for key, item in value.items()}
    if is_nest(value):
        return rebuild(value, [map_leaves(function, item) for item in value])
    return function(value)


def leaves(value: Any) -> Iterator[Any]:
    """The leaves in order, depth first."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if is_nest(value):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def rebuild(like: Any, items: list[Any]) -> Any:
    """A list, tuple or named tuple of the same kind as `like`, with these items."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
