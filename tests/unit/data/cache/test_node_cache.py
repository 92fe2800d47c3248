"""The node's copies of data files: made once, read by all, and gone with the last."""

import fcntl
import logging
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from paceline.core.quantities import read_bytes
from paceline.data import open_data
from paceline.data.cache import node_cache as cache_module
from paceline.data.cache import shared_folder as cache_folder
from paceline.data.cache.node_cache import NodeCache
from paceline.data.cache.shared_folder import LOCK, PREFIX
from paceline.data.cache.specs import copy_files
from paceline.errors import ConfigError


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "far"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 1000)
    return sorted(folder.iterdir())


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "start_reaper", lambda folder: None)
    return tmp_path / "near"


@pytest.fixture
def warnings(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("paceline"), "propagate", True)
    caplog.set_level(logging.WARNING, "paceline")
    return caplog


@pytest.fixture
def copied(monkeypatch):
    """The files that were copied, however often."""
    names, copy = [], shutil.copyfile

    def counted(source, target):
        names.append(source.name)
        time.sleep(0.01)  # so that others come while it is under way
        return copy(source, target)

    monkeypatch.setattr(cache_module.shutil, "copyfile", counted)
    return names


def test_ranks_of_a_node_copy_each_file_once_between_them(files, place, copied):
    caches = [NodeCache(place, "run") for _ in range(4)]
    with ThreadPoolExecutor(4) as ranks:
        found = list(ranks.map(lambda cache: cache.fetch(files), caches))
    assert sorted(copied) == [path.name for path in files]
    assert found == [found[0]] * 4
    assert all(path.is_relative_to(place) for path in found[0])
    assert [path.read_bytes() for path in found[0]] == [path.read_bytes() for path in files]
    for cache in caches:
        assert found[0][0].exists()
        cache.close()
    assert list(place.iterdir()) == []


def test_what_does_not_fit_stays_where_it_is(files, place, copied):
    files[1].write_bytes(b"large" * 1000)
    first, second = NodeCache(place, "run", 2500), NodeCache(place, "run", 2500)
    expected = [True, False, True, False, False, False]
    for cache in (first, second):
        found = cache.fetch(files)
        assert [new != old for new, old in zip(found, files, strict=True)] == expected
        assert cache.fetch(files) == found  # nothing is counted twice
    assert copied == ["0.bin", "2.bin"]
    first.close()
    second.close()


def test_by_default_half_of_what_is_free_there_may_be_used(files, place, monkeypatch):
    free = shutil._ntuple_diskusage(10_000, 6_000, 4_000)
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda folder: free)
    cache = NodeCache(place, "run")
    found = cache.fetch(files)
    cache.close()
    assert sum(new != old for new, old in zip(found, files, strict=True)) == 2


def test_a_file_that_was_written_anew_is_copied_anew(files, place):
    cache = NodeCache(place, "run")
    (old,) = cache.fetch(files[:1])
    files[0].write_bytes(b"n" * 1000)
    (new,) = cache.fetch(files[:1])
    assert (new != old, new.read_bytes()) == (True, b"n" * 1000)
    cache.close()


def test_a_copy_that_fails_is_tried_once_and_the_file_is_read_itself(
    files, place, monkeypatch, warnings
):
    tries = []

    def full(source, target):
        tries.append(source)
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module.shutil, "copyfile", full)
    caches = [NodeCache(place, "run"), NodeCache(place, "run")]
    assert [cache.fetch(files[:1]) for cache in caches] == [files[:1]] * 2
    assert len(tries) == 1
    assert "No space left on device" in warnings.text
    assert not list(place.glob("*/*.partial"))
    for cache in caches:
        cache.close()
    assert list(place.iterdir()) == []


def test_a_file_that_changes_while_it_is_copied_is_read_itself(files, place, monkeypatch, warnings):
    def changed(source, target):
        target.write_bytes(source.read_bytes())
        source.write_bytes(b"other")

    monkeypatch.setattr(cache_module.shutil, "copyfile", changed)
    cache = NodeCache(place, "run")
    assert cache.fetch(files[:1]) == files[:1]
    assert "it was written to meanwhile" in warnings.text
    cache.close()


def test_nobody_waits_for_ever_for_a_copy_that_does_not_grow(files, place, monkeypatch, warnings):
    monkeypatch.setattr(cache_module, "STALLED_S", 0.1)
    cache = NodeCache(place, "run")
    (copy,) = cache.fetch(files[:1])
    copy.unlink()
    lock = os.open(f"{copy}.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert cache.fetch(files[:1]) == files[:1]
    assert "has not grown" in warnings.text
    os.close(lock)  # as the kernel does for a copier that dies: the next one makes the copy
    assert cache.fetch(files[:1]) == [copy]
    cache.close()


def test_who_waits_gets_the_copy_as_soon_as_it_is_made(files, place, monkeypatch):
    begun, go_on, copy = threading.Event(), threading.Event(), shutil.copyfile

    def slow(source, target):
        begun.set()
        assert go_on.wait(20)
        return copy(source, target)

    monkeypatch.setattr(cache_module.shutil, "copyfile", slow)
    caches = [NodeCache(place, "run"), NodeCache(place, "run")]
    with ThreadPoolExecutor(2) as ranks:
        first = ranks.submit(caches[0].fetch, files[:1])
        assert begun.wait(20)
        second = ranks.submit(caches[1].fetch, files[:1])
        time.sleep(0.1)
        assert not second.done()
        go_on.set()
        assert second.result(20) == first.result(20) != files[:1]
    for cache in caches:
        cache.close()


def test_folders_of_runs_that_were_killed_are_removed_and_no_others(files, place):
    stale, empty = place / f"{PREFIX}dead", place / f"{PREFIX}empty"
    for folder in (stale, empty):
        folder.mkdir(parents=True)
    (stale / LOCK).touch()
    (stale / "0123-x.bin").write_bytes(b"left behind")
    (place / "mine").mkdir()
    other = NodeCache(place, "other")
    (theirs,) = other.fetch(files[:1])
    cache = NodeCache(place, "run")
    cache.fetch(files[:1])
    assert not stale.exists()
    assert not empty.exists()
    assert theirs.exists()
    assert (place / "mine").exists()
    cache.close()
    other.close()


def test_a_place_that_cannot_be_used_is_a_wrong_setting(files, tmp_path):
    with pytest.raises(ConfigError, match=r"data\.cache_dir: .* cannot be made"):
        NodeCache(files[0], "run").fetch(files)
    assert NodeCache(tmp_path / "unused", "run").close() is None


def test_a_data_set_is_the_same_with_copies_in_place_of_its_files(tmp_path, place):
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    np.savez(tmp_path / "a.npz", x=x[:4], y=y[:4])
    np.savez(tmp_path / "b.npz", x=x[4:], y=y[4:])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    (tmp_path / "train.list").write_text("# two files\na.npz\nb.npz\n")
    cache = NodeCache(place, "run")
    pair = f"{tmp_path}/x.npy,{tmp_path}/y.npy"
    for spec in (f"{tmp_path}/train.list", f"{tmp_path}/[ab].npz", pair):
        copied = copy_files(spec, cache)
        assert str(tmp_path / "near") in copied
        batch = open_data(copied, part="train").take(np.arange(6))
        assert batch.inputs.tolist() == x.tolist()
        assert batch.targets.tolist() == y.tolist()
    for folder in (str(tmp_path), f"{tmp_path}?size=8x8"):
        assert copy_files(folder, cache) == folder
    cache.close()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "10XB", "1e3GB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="a size as"):
        read_bytes(text)


def test_a_folder_that_others_remove_again_and_again_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_folder, "_is_at", lambda descriptor, path: False)
    with pytest.raises(ConfigError, match=r"cannot be made: other processes keep removing it"):
        NodeCache(tmp_path, "token").fetch([tmp_path / "x.npy"])
