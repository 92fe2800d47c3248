"""A JAX model's state besides its parameters, as flat vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from paceline.core.vectors import Layout, Vector
from paceline.frameworks.jax.trees import from_plain, is_float, named_leaves, to_plain


class JaxState:
    """A pytree: its floats are buffers (BatchNorm statistics), the rest are constants (counters,
    random keys)."""

    def __init__(self, tree: Any) -> None:
        self.tree = jax.tree.map(jax.numpy.array, tree)
        named = named_leaves(self.tree)
        floats = [(name, leaf) for name, leaf in named if is_float(leaf)]
        self._layout = Layout.of((name, leaf.shape, str(leaf.dtype)) for name, leaf in floats)
        self.buffers = self._layout.empty_vector()
        others = [to_plain(leaf) for _, leaf in named if not is_float(leaf)]
        self.constants: Vector = np.empty(sum(array.nbytes for array in others), np.uint8)

    def collect_buffers(self) -> Vector:
        leaves = jax.tree_util.tree_leaves(self.tree)
        floats = [np.asarray(leaf) for leaf in leaves if is_float(leaf)]
        return self._layout.gather(floats, self.buffers)

    def accept_buffers(self) -> None:
        views = iter(self._layout.views(self.buffers))
        self.tree = jax.tree.map(
            lambda leaf: jax.numpy.array(next(views), leaf.dtype) if is_float(leaf) else leaf,
            self.tree,
        )

    def collect_constants(self) -> Vector:
        for plain, room in self._rooms():
            room[:] = plain.reshape(-1).view(np.uint8)
        return self.constants

    def accept_constants(self) -> None:
        rooms = self._rooms()

        def fresh(leaf: Any) -> Any:
            if is_float(leaf):
                return leaf
            plain, room = next(rooms)
            return from_plain(room.copy().view(plain.dtype).reshape(plain.shape), leaf)

        self.tree = jax.tree.map(fresh, self.tree)

    def plain_arrays(self) -> Iterator[tuple[str, Vector]]:
        """Each leaf by its path, for a file."""
        for name, leaf in named_leaves(self.tree):
            array = np.array(leaf, np.float32) if _is_odd(leaf) else to_plain(leaf)
            yield f"state.{name}", array

    def _rooms(self) -> Iterator[tuple[Vector, Vector]]:
        at = 0
        for leaf in jax.tree_util.tree_leaves(self.tree):
            if not is_float(leaf):
                plain = to_plain(leaf)
                yield plain, self.constants[at : at + plain.nbytes]
                at += plain.nbytes


def _is_odd(leaf: Any) -> bool:
    """A float type that numpy does not know."""
    return is_float(leaf) and np.dtype(leaf.dtype).kind not in "f"
