"""Slices of owners, and sums in the order of ranks."""

import numpy as np
import pytest

from paceline.comm.allreduce.slices import add_in_order, owner_slice, owner_slices
from paceline.core.vectors import ALIGNMENT_BYTES


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000, 100_003])
@pytest.mark.parametrize("owners", [1, 2, 3, 7])
def test_slices_cover_a_vector_and_begin_on_cache_lines(size, itemsize, owners):
    slices = owner_slices(size, itemsize, owners)
    assert [slices[0].start, *(piece.stop for piece in slices)] == [
        *(piece.start for piece in slices),
        size,
    ]
    assert all(piece.start * itemsize % ALIGNMENT_BYTES == 0 for piece in slices)
    lengths = [piece.stop - piece.start for piece in slices]
    assert max(lengths) - min(lengths) <= max(1, 2 * ALIGNMENT_BYTES // itemsize)


def test_a_rank_that_owns_nothing_gets_an_empty_slice():
    assert owner_slice(100, 4, owners=2, owner=2) == slice(100, 100)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("place", ["elsewhere", 0, 1])
def test_rows_are_added_in_their_order(rows, place):
    if place == 1 and rows == 1:
        pytest.skip("there is one row")
    # In float16 the sum depends on the order.
    values = np.random.default_rng(rows).normal(size=(rows, 1000)).astype(np.float16)
    expected = values[0].copy()
    for row in values[1:]:
        expected += row
    out = np.empty(1000, np.float16) if place == "elsewhere" else values[place]
    add_in_order(list(values), out)
    assert out.tobytes() == expected.tobytes()
