"""HDF5 files that are damaged or odd: an error that names the file, and never more memory."""

import h5py
import numpy as np
import pytest

from paceline.data import open_data
from paceline.errors import DataError

LABELS = np.zeros(10, np.int64)


def texts(file):
    file.create_dataset("x", data=["a"] * 10, dtype=h5py.string_dtype())


def lists(file):
    file.create_dataset("x", (10,), h5py.vlen_dtype(np.float32))


def records(file):
    file["x"] = np.zeros(10, [("a", "f4"), ("b", "i4")])


def dates(file):
    file["x"] = np.zeros(10, "M8[s]").astype(h5py.opaque_dtype("M8[s]"))


def references(file):
    file.create_dataset("x", (10,), h5py.ref_dtype)


def a_number(file):
    file["x"] = 3.0


def nothing(file):
    file["x"] = h5py.Empty("f4")


def a_type(file):
    file["x"] = np.dtype("f4")


def a_dead_link(file):
    file["x"] = h5py.SoftLink("/nowhere")


def a_link_to_itself(file):
    file["x"] = h5py.SoftLink("/x")


def another_file(file):
    file["x"] = h5py.ExternalLink("missing.h5", "/x")


def a_group_in_itself(file):
    group = file.create_group("x")
    group["again"] = group


NUMBERS, ARRAY, UNREADABLE = "expected numbers", "is not an array with samples", "cannot be read"
ODD = [
    (texts, NUMBERS),
    (lists, NUMBERS),
    (records, NUMBERS),
    (dates, NUMBERS),
    (references, NUMBERS),
    (a_number, ARRAY),
    (nothing, ARRAY),
    (a_type, UNREADABLE),
    (a_dead_link, UNREADABLE),
    (a_link_to_itself, UNREADABLE),
    (another_file, "missing.h5 is missing"),
    (a_group_in_itself, "holds the group x/again"),
]


@pytest.mark.parametrize(("fill", "words"), ODD, ids=[fill.__name__ for fill, _ in ODD])
def test_what_is_no_array_of_numbers(tmp_path, fill, words):
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        fill(file)
        file["y"] = LABELS
    with pytest.raises(DataError, match=rf"odd\.h5.*{words}"):
        open_data(str(tmp_path / "odd.h5"), part="train")


@pytest.mark.parametrize(
    "shape",
    [(2**40,), (2**62,), (2**36, 1000), (10, 2**40), (4, 2**31, 2**31), (2**31, 2**31)],
    ids=str,
)
def test_more_is_declared_than_any_file_has(tmp_path, shape):
    """Chunks that were never written take no room in the file."""
    with h5py.File(tmp_path / "vast.h5", "w") as file:
        file.create_dataset("x", shape, "i1", chunks=True)
        file.create_dataset("y", shape[:1], "i1", chunks=True)
    with pytest.raises(DataError, match=r"x in \S+vast.h5 declares [\d,]+ samples of [\d,]+ bytes"):
        open_data(str(tmp_path / "vast.h5"), part="train")


def test_a_part_of_a_virtual_dataset_is_missing(tmp_path):
    """HDF5 would read zeros, and training would go on with them."""
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["x"] = np.ones((10, 3), np.float32)
    layout = h5py.VirtualLayout((10, 3), "f4")
    layout[:] = h5py.VirtualSource("part.h5", "x", (10, 3))
    with h5py.File(tmp_path / "whole.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
        file["y"] = LABELS
    source = open_data(str(tmp_path / "whole.h5"), part="train")
    assert (source.take(np.arange(10)).inputs == 1).all()
    (tmp_path / "part.h5").unlink()
    with pytest.raises(DataError, match=r"x in \S+whole.h5 is made of other files, and part.h5"):
        open_data(str(tmp_path / "whole.h5"), part="train")
