"""Whose memory it is, and how much of it there is."""

import mmap
import sys

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.tools.bench.ranks.mappings import (
    check_kernel,
    identify,
    read_mappings,
    resident_bytes,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")

MB = 2**20


def view(file, flags):
    return np.frombuffer(mmap.mmap(file.fileno(), 4 * mmap.PAGESIZE, flags=flags), np.uint8)


@pytest.fixture
def file(tmp_path):
    with (tmp_path / "memory").open("w+b") as opened:
        opened.truncate(4 * mmap.PAGESIZE)
        yield opened


def name(array, owner):
    return identify(array.ctypes.data, read_mappings(), owner)


def test_one_place_in_a_shared_file_has_one_name_for_all(file):
    one, other = view(file, mmap.MAP_SHARED), view(file, mmap.MAP_SHARED)
    assert one.ctypes.data != other.ctypes.data
    assert name(one[5000:], "rank 0") == name(other[5000:], "rank 1")
    assert name(one[5000:], "rank 0") != name(one[5001:], "rank 0")


def test_private_memory_belongs_to_its_owner(file):
    for array in (np.zeros(10), np.zeros(4 * MB), view(file, mmap.MAP_PRIVATE)):
        assert name(array, "rank 0").startswith("rank 0 at ")


def test_resident_memory_grows_with_what_is_written_and_falls_when_it_is_freed():
    before = resident_bytes()
    array = np.ones(64 * MB, np.uint8)
    held = resident_bytes() - before
    del array
    assert 60 * MB < held < 70 * MB
    assert resident_bytes() - before < 4 * MB


def test_a_kernel_that_does_not_tell_is_refused(tmp_path):
    check_kernel()
    (tmp_path / "old").write_text("Rss: 4 kB\nPss: 4 kB\n")
    for name in ("old", "missing"):
        with pytest.raises(ConfigError, match=f"{name}, which this system does not have"):
            check_kernel(tmp_path / name)
