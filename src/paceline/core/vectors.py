"""Many arrays as one flat vector: layouts, views, and what differs between ranks."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[Any]
"""A flat, contiguous array of one float type."""

ALIGNMENT_BYTES = 64
"""Each array starts on a cache line: vector units prefer it, and some BLAS kernels choose their
order of summation by alignment, so an unaligned copy of a model would train to other bits."""


@dataclass(frozen=True)
class Entry:
    """One array's place in the flat vector.

    `dtype` is the array's own, not the vector's, with its order in memory where that is unusual.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"'{self.name}' {self.shape} {self.dtype}"


@dataclass(frozen=True)
class Layout:
    """Where each array lies in a flat vector of `size` elements of type `dtype`.

    The gaps that alignment leaves are part of the vector; they start at zero and every rule keeps
    them there, since a rule treats all elements alike.

    >>> layout = Layout.of([("w", (2, 3), "float32"), ("b", (3,), "float32")])
    >>> [entry.offset for entry in layout.entries], layout.size
    ([0, 16], 32)
    """

    entries: tuple[Entry, ...]
    dtype: np.dtype[np.floating]
    size: int

    @classmethod
    def of(cls, arrays: Iterable[tuple[str, Sequence[int], str]]) -> Layout:
        """Lay out `(name, shape, dtype)` triples in their order, each on its own cache line.

        The vector is float32, or float64 as soon as one array is: no array loses precision in it.
        """
        described = [(name, tuple(int(n) for n in shape), str(dt)) for name, shape, dt in arrays]
        wide = any("float64" in d for _, _, d in described)
        dtype: np.dtype[np.floating] = np.dtype(np.float64) if wide else np.dtype(np.float32)
        step = ALIGNMENT_BYTES // dtype.itemsize
        entries, offset = [], 0
        for name, shape, own in described:
            entries.append(Entry(name, shape, own, offset))
            offset += -(-math.prod(shape) // step) * step
        return cls(tuple(entries), dtype, offset)

    def empty_vector(self) -> Vector:
        """A new vector of zeros with this layout, on a cache line."""
        return aligned_zeros(self.size, self.dtype)

    def views(self, vector: Vector) -> list[Vector]:
        """One shaped view per entry; writing to it writes to `vector`."""
        if vector.shape != (self.size,) or not vector.flags.c_contiguous:
            raise ValueError(
                f"vector has shape {vector.shape}, expected ({self.size},) and contiguous"
            )
        return [vector[e.offset : e.offset + e.size].reshape(e.shape) for e in self.entries]

    def gather(self, arrays: Sequence[npt.ArrayLike], vector: Vector) -> Vector:
        """Copy the arrays into `vector`, converting to its type."""
        for view, array in zip(self.views(vector), arrays, strict=True):
            view[...] = array
        return vector

    def fingerprint(self) -> str:
        """A short text that is the same on two ranks exactly when their layouts are."""
        return hashlib.sha256(repr(self.entries).encode()).hexdigest()[:16]


def aligned_zeros(size: int, dtype: npt.DTypeLike) -> Vector:
    """Zeros that start on a cache line."""
    kind = np.dtype(dtype)
    raw = np.zeros(size * kind.itemsize + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size * kind.itemsize].view(kind)


def differences(layouts: Sequence[Layout]) -> list[str]:
    """How the ranks' layouts differ from rank 0's, one sentence each.

    >>> a = Layout.of([("w", (2, 3), "float32")])
    >>> differences([a, Layout.of([("w", (2, 4), "float32")])])
    ["rank 1 has 'w' (2, 4) float32 where rank 0 has 'w' (2, 3) float32"]
    """
    found = []
    for rank, layout in enumerate(layouts[1:], start=1):
        found += tell_apart(layout, f"rank {rank}", layouts[0], "rank 0")
    return at_most(found)


def tell_apart(one: Layout, name: str, other: Layout, other_name: str) -> list[str]:
    """How a layout differs from another one, a sentence each.

    >>> a, b = Layout.of([("w", (2,), "float32")]), Layout.of([])
    >>> tell_apart(a, "the run", b, "the model")
    ["the run has 'w' (2,) float32, which the model lacks"]
    """
    found = []
    for theirs, own in _aligned(other.entries, one.entries):
        if own is None:
            found.append(f"{name} lacks {theirs}, which {other_name} has")
        elif theirs is None:
            found.append(f"{name} has {own}, which {other_name} lacks")
        elif (theirs.name, theirs.shape, theirs.dtype) != (own.name, own.shape, own.dtype):
            found.append(f"{name} has {own} where {other_name} has {theirs}")
    return found


def at_most(found: list[str], limit: int = 5) -> list[str]:
    """The first of them, and how many there are more."""
    return found if len(found) <= limit else [*found[:limit], f"and {len(found) - limit} more"]


def _aligned(
    mine: Sequence[Entry], theirs: Sequence[Entry]
) -> Iterable[tuple[Entry | None, Entry | None]]:
    """Pairs of entries with the same name; None where one side lacks it."""
    by_name = {entry.name: entry for entry in theirs}
    names = {entry.name for entry in mine}
    if [entry.name for entry in mine] != [entry.name for entry in theirs] and names == set(by_name):
        yield from zip(mine, theirs, strict=True)  # same names, another order
        return
    for entry in mine:
        yield entry, by_name.get(entry.name)
    for entry in theirs:
        if entry.name not in names:
            yield None, entry


def is_finite(vector: Vector) -> bool:
    """Whether no element is infinite or NaN; one fast pass by BLAS.

    >>> is_finite(np.array([1e200, 2.0])), is_finite(np.array([1.0, np.nan]))
    (True, False)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.dot(vector, vector)) or np.isfinite(vector).all())


def checksum(*arrays: Vector) -> int:
    """A cheap hash of the bytes of contiguous arrays, to check that ranks hold the same values."""
    value = 0
    for array in arrays:
        value = zlib.crc32(array.reshape(-1).view(np.uint8).data, value)
    return value


def copy_vectors(live: Mapping[str, Vector]) -> dict[str, Vector]:
    """Copies of the vectors."""
    return {name: vector.copy() for name, vector in live.items()}


def fill_vectors(live: Mapping[str, Vector], saved: Mapping[str, Vector]) -> None:
    """Write saved values back, except where the size has changed with the number of ranks."""
    for name, vector in live.items():
        if name in saved and saved[name].shape == vector.shape:
            vector[:] = saved[name]
