import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.vectors import ALIGNMENT_BYTES, Layout, aligned_zeros, checksum, differences

shapes = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=6)
dtypes = st.sampled_from(["float32", "float64", "bfloat16", "float16"])


def layout_of(*shapes, dtype="float32"):
    return Layout.of((f"p{i}", shape, dtype) for i, shape in enumerate(shapes))


@given(shapes, st.data())
def test_round_trip_keeps_every_value(shapes, data):
    kinds = [data.draw(dtypes) for _ in shapes]
    layout = Layout.of((f"p{i}", s, d) for i, (s, d) in enumerate(zip(shapes, kinds, strict=True)))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(layout.dtype) for shape in shapes]
    vector = layout.gather(arrays, layout.empty_vector())
    for one, other in zip(arrays, layout.views(vector), strict=True):
        assert one.tobytes() == other.tobytes()
    assert np.count_nonzero(vector) == sum(map(np.count_nonzero, arrays))  # gaps are zero


@given(shapes)
def test_arrays_never_overlap_and_start_on_cache_lines(shapes):
    layout = layout_of(*shapes)
    vector = layout.empty_vector()
    for number, view in enumerate(layout.views(vector), start=1):
        assert view.size == 0 or view.ctypes.data % ALIGNMENT_BYTES == 0
        assert (view == 0).all(), "a place was written twice"
        view[...] = number


def test_views_write_through():
    layout = layout_of((2, 3), (4,))
    vector = layout.empty_vector()
    layout.views(vector)[1][:] = 7
    assert vector[layout.entries[1].offset : layout.entries[1].offset + 4].tolist() == [7.0] * 4


def test_one_float64_makes_the_vector_float64():
    assert layout_of((2,)).dtype == np.float32
    mixed = Layout.of([("a", (2,), "float32"), ("b", (2,), "float64"), ("c", (2,), "bfloat16")])
    assert mixed.dtype == np.float64


def test_a_vector_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(16,\)"):
        layout_of((5,)).views(np.zeros(3, np.float32))


def test_fingerprints_tell_layouts_apart():
    same, other = layout_of((2, 3)), layout_of((3, 2))
    assert same.fingerprint() == layout_of((2, 3)).fingerprint() != other.fingerprint()
    assert same.fingerprint() != layout_of((2, 3), dtype="float64").fingerprint()


def test_differences_name_parameter_shapes_and_rank():
    base = Layout.of([("w", (2, 3), "float32"), ("b", (3,), "float32")])
    wide = Layout.of([("w", (2, 4), "float32"), ("b", (3,), "float32")])
    short = Layout.of([("w", (2, 3), "float32")])
    other = Layout.of([("w", (2, 3), "float32"), ("b", (3,), "float32"), ("c", (1,), "float32")])
    swapped = Layout.of([("b", (3,), "float32"), ("w", (2, 3), "float32")])
    assert differences([base, base]) == []
    assert differences([base, base, wide]) == [
        "rank 2 has 'w' (2, 4) float32 where rank 0 has 'w' (2, 3) float32"
    ]
    assert differences([base, short]) == ["rank 1 lacks 'b' (3,) float32, which rank 0 has"]
    assert differences([base, other]) == ["rank 1 has 'c' (1,) float32, which rank 0 lacks"]
    assert "where rank 0 has 'w'" in differences([base, swapped])[0]


def test_many_differences_are_cut_short():
    many = [layout_of(*[(n,)] * 20) for n in (1, 2)]
    found = differences(many)
    assert len(found) == 6
    assert found[-1] == "and 15 more"


def test_checksum_sees_every_array_and_their_order():
    a, b = np.arange(5.0), np.arange(5.0) + 1
    assert checksum(a, b) == checksum(a.copy(), b.copy())
    assert len({checksum(a, b), checksum(b, a), checksum(a), checksum(a, a)}) == 4


def test_aligned_zeros_are_writable_zeros_on_a_cache_line():
    for size in (0, 1, 1000):
        vector = aligned_zeros(size, np.float32)
        assert vector.flags.writeable
        assert vector.tolist() == [0.0] * size
        assert size == 0 or vector.ctypes.data % ALIGNMENT_BYTES == 0
