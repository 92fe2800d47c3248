"""Vectors and ranges cut into pieces, of fixed length or evenly."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from paceline.core.vectors import Vector

Span: TypeAlias = "slice[int, int, int]"
"""A slice with both ends."""

CACHED_ELEMENTS = 32 * 1024
"""So few that several vectors of them stay in a core's cache."""


def chunks(piece: Span, longest: int) -> Iterator[Span]:
    """Cut a slice into chunks of `longest` elements; the last may be shorter.

    >>> list(chunks(slice(3, 8), 4))
    [slice(3, 7, None), slice(7, 8, None)]
    """
    for first in range(piece.start, piece.stop, longest):
        yield slice(first, min(first + longest, piece.stop))


def pieces(size: int) -> Iterator[Span]:
    """Parts of a vector that stay in the cache, so that temporaries are short and fast.

    >>> [length(piece) for piece in pieces(70_000)]
    [32768, 32768, 4464]
    """
    return chunks(slice(0, size), CACHED_ELEMENTS)


def split_evenly(size: int, parts: int) -> list[Span]:
    """Contiguous, nearly equal parts.

    >>> split_evenly(10, 3)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    edges = [size * part // parts for part in range(parts + 1)]
    return [slice(first, last) for first, last in pairwise(edges)]


def length(piece: Span) -> int:
    """How many elements a slice has."""
    return piece.stop - piece.start


def split_buffer(buffer: Vector, longest: int) -> list[Vector]:
    """Views of a flat array, of `longest` elements each; the last may be shorter, or empty.

    >>> import numpy as np
    >>> [piece.tolist() for piece in split_buffer(np.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    if buffer.size <= longest:
        return [buffer]
    return [buffer[at : at + longest] for at in range(0, buffer.size, longest)]
