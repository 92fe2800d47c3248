"""Pytrees of JAX as flat vectors, and their leaves as plain numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.core.vectors import Layout, Vector
from paceline.errors import ReplicaError


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Each leaf with its path as a name: `layers.0.kernel`."""
    named = [(_name(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ReplicaError(f"two leaves of the pytree would be named '{twice[0]}'; rename a key")
    return named


def _name(path: Sequence[Any]) -> str:
    parts = [
        str(next(getattr(key, kind) for kind in ("key", "idx", "name") if hasattr(key, kind)))
        for key in path
    ]
    if len(parts) > 1 and parts[-1] == "value":  # Flax wraps each array
        parts.pop()
    return ".".join(parts) or "value"


@dataclass(frozen=True)
class TreeLayout:
    """A pytree of float arrays, and where each of them lies in a flat vector."""

    layout: Layout
    structure: Any

    @classmethod
    def of(cls, tree: Any, what: str) -> TreeLayout:
        """Of a tree whose leaves are all floats; `what` names them in errors."""
        named = [(name, jnp.asarray(leaf)) for name, leaf in named_leaves(tree)]
        for name, leaf in named:
            if not is_float(leaf):
                raise ReplicaError(
                    f"{what} '{name}' is {leaf.dtype}, and only floats are trained; keep it in "
                    "JaxModel.state, or out of the pytree"
                )
        layout = Layout.of((name, leaf.shape, str(leaf.dtype)) for name, leaf in named)
        return cls(layout, jax.tree_util.tree_structure(tree))

    def cut(self, flat: Any, as_they_were: bool = True) -> Any:
        """The tree whose leaves are slices of this vector, in their own types or the vector's."""
        leaves = []
        for entry in self.layout.entries:
            part = jax.lax.slice(flat, (entry.offset,), (entry.offset + entry.size,))
            part = part.reshape(entry.shape)
            leaves.append(part.astype(entry.dtype) if as_they_were else part)
        return jax.tree_util.tree_unflatten(self.structure, leaves)

    def join(self, tree: Any) -> Any:
        """The flat vector of a tree, with zeros in the gaps."""
        parts, end = [], 0
        for entry, leaf in zip(self.layout.entries, jax.tree_util.tree_leaves(tree), strict=True):
            parts.append(jnp.zeros(entry.offset - end, self.layout.dtype))
            parts.append(jnp.ravel(leaf).astype(self.layout.dtype))
            end = entry.offset + entry.size
        parts.append(jnp.zeros(self.layout.size - end, self.layout.dtype))
        return jnp.concatenate([part for part in parts if part.size])


def is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating))


def to_plain(leaf: Any) -> Vector:
    """A copy in numpy; types that numpy does not have become unsigned integers of their size, and
    random keys their data."""
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    array = np.array(leaf, order="C")
    if array.dtype.kind in "biufc":
        return array
    return array.view(f"u{array.dtype.itemsize}")


def from_plain(array: Vector, like: Any) -> Any:
    """The inverse of `to_plain`, with the type of `like`."""
    if _is_key(like):
        numbers = jnp.array(np.asarray(array, np.uint32))
        return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(like))
    kind = np.dtype(jnp.asarray(like).dtype)
    plain = np.array(array)
    if kind.kind not in "biufc":
        plain = plain.view(kind)
    return jnp.array(plain.astype(kind))


def alias(vector: Vector) -> Any | None:
    """A JAX array on the memory of a numpy vector; None where the device does not support that.

    JAX assumes that arrays are constant. So before writing to the vector, wait for everything that
    was computed from the array, and never ask JAX for its values.
    """
    array = jax.device_put(vector)
    return array if array.unsafe_buffer_pointer() == vector.ctypes.data else None


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))
