"""Checkpoints whose checksums are right and whose contents are not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paceline.checkpoint.store import Store

ODD: tuple[Any, ...] = ("text", -1, None, True, [], {}, 1e300, [1, 2, 3], {"a": 1})
ODD_ARRAYS: tuple[Any, ...] = (
    "text",
    None,
    np.zeros(1, np.float32),
    np.zeros((2, 2), np.float64),
    np.zeros(3, np.int64),
    np.zeros(0, np.float32),
)


class Altered:
    """The newest checkpoint of a run: its parts as trees, which may be changed and written back."""

    def __init__(self, run_dir: Path) -> None:
        self.store = Store(run_dir / "checkpoints")
        self.name = self.store.names()[-1]
        self.parts = self.store.parts(self.name)
        self.trees: dict[str, Any] = {"facts": self.store.facts(self.name)}
        self.trees |= {part: self.store.read(self.name, part) for part in self.parts}

    def places(self) -> Iterator[tuple[str, ...]]:
        """The path to every value of every part."""
        for part, tree in self.trees.items():
            yield from _places(tree, (part,))

    def value(self, place: tuple[str, ...]) -> Any:
        return _find(self.trees, place)

    def write(self, place: tuple[str, ...], value: Any) -> None:
        """All as it was, but for one value; `...` removes it."""
        trees = copy.deepcopy(self.trees)
        owner, last = _find(trees, place[:-1]), place[-1]
        key: Any = int(last) if isinstance(owner, list) else last
        if value is ...:
            del owner[key]
        else:
            owner[key] = value
        self.store.begin(self.name)
        for part in self.parts:
            self.store.write(self.name, part, trees[part])
        self.store.commit(self.name, self.parts, trees["facts"])


def _places(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    inner: list[tuple[Any, Any]] = []
    if isinstance(tree, dict):
        inner = list(tree.items())
    elif isinstance(tree, list):
        inner = list(enumerate(tree))
    for key, value in inner:
        yield (*path, str(key))
        yield from _places(value, (*path, str(key)))


def _find(tree: Any, place: tuple[str, ...]) -> Any:
    for key in place:
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    return tree
