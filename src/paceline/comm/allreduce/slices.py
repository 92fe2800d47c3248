"""Which slice of a vector each owner sums, and the sum itself: ranks are added in their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.comm.world import Buffer
from paceline.core.chunks import Span
from paceline.core.vectors import ALIGNMENT_BYTES


def owner_slice(size: int, itemsize: int, owners: int, owner: int) -> Span:
    """The part of a vector that one of its owners sums: an even share that begins on a cache line.

    A rank that is not among the owners gets an empty slice.
    """
    if owner >= owners:
        return slice(size, size)
    per_line = ALIGNMENT_BYTES // itemsize
    first = size * owner // owners // per_line * per_line
    if owner == owners - 1:
        return slice(first, size)
    return slice(first, size * (owner + 1) // owners // per_line * per_line)


def owner_slices(size: int, itemsize: int, owners: int) -> list[Span]:
    """The slices of all owners.

    >>> owner_slices(100, itemsize=8, owners=3)
    [slice(0, 32, None), slice(32, 64, None), slice(64, 100, None)]
    """
    return [owner_slice(size, itemsize, owners, owner) for owner in range(owners)]


def add_in_order(rows: Sequence[Buffer], out: Buffer) -> None:
    """Overwrite `out` with the sum of the rows, added in their order: all ranks get the same bits.

    `out` may be one of the first two rows, but no later one.

    >>> total = np.empty(2)
    >>> add_in_order([np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5.0, 6.0])], total)
    >>> total
    array([ 9., 12.])
    """
    if len(rows) == 1:
        if out is not rows[0]:
            np.copyto(out, rows[0])
        return
    np.add(rows[0], rows[1], out=out)
    if len(rows) > 2:
        for row in rows[2:]:
            np.add(out, row, out=out)
