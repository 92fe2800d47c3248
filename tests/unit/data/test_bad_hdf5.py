"""HDF5 files that are damaged or odd: an error that names the file, and never more memory."""

import json
import subprocess
import sys
import textwrap

import h5py
import numpy as np
import pytest

from paceline.data import open_data
from paceline.errors import DataError

LABELS = np.zeros(10, np.int64)

DAMAGE = """
    import collections, json, resource, signal, sys
    from pathlib import Path
    import numpy as np
    from paceline.data import open_data
    from paceline.errors import DataError

    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    generator = np.random.default_rng(1)
    ends = collections.Counter()

    def attempt(path):
        source = open_data(str(path), part="train")
        for first in range(0, min(len(source), 10_000), 32):
            source.take(np.arange(first, min(first + 32, len(source))))

    def damaged(whole):
        for sixteenth in range(16):
            yield "cut", whole[: len(whole) * sixteenth // 16]
        used = np.flatnonzero(np.frombuffer(whole, np.uint8))
        for _ in range(250):
            changed = bytearray(whole)
            for _ in range(generator.integers(1, 4)):
                changed[generator.choice(used)] = generator.integers(256)
            yield "flip", bytes(changed)

    for file in map(Path, sys.argv[1:]):
        for kind, content in damaged(file.read_bytes()):
            path = file.with_name(f"damaged-{sum(ends.values())}.h5")
            path.write_bytes(content)
            signal.alarm(20)  # of one file: no handler, so it ends the process
            try:
                attempt(path)
                ends[f"{kind}: read"] += 1
            except DataError as error:
                ends[f"{kind}: error, named {path.name in str(error)}"] += 1
            path.unlink()
    print(json.dumps(ends))
"""


def test_files_with_damage_anywhere(tmp_path):
    """In a process of its own: what is read by C may crash, or never end."""
    generator = np.random.default_rng(1)
    for name, options in {
        "plain": {},
        "packed": {"chunks": (16, 6), "compression": "gzip"},
    }.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=generator.normal(size=(64, 6)), **options)
            file["y"] = generator.integers(0, 3, 64)
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DAMAGE), *files],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    ends = json.loads(run.stdout)
    assert ends.pop("cut: error, named True") == 32
    assert ends.pop("flip: error, named True") + ends.pop("flip: read") == 500
    assert ends == {}


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


NUMBERS, ARRAY, UNREADABLE = "expected numbers", "is no array with samples", "cannot be read"
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
    (another_file, UNREADABLE),
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
