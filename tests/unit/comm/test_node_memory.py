"""Node memory in files, its locks, and what happens when it is not available."""

import os
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.strangers import give_away, needs_root

from paceline.comm import node_memory as memory
from paceline.comm import run_world
from paceline.comm.node_memory import PREFIX, find_place, make_file, map_together, open_file
from paceline.errors import WorldError


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Node memory of this test, in a directory of its own."""
    monkeypatch.setenv("OMPI_MCA_btl_sm_backing_directory", str(tmp_path))
    return tmp_path


def in_files(check):
    """A program in which threads map node memory as processes do: each opens the file itself."""
    return lambda world: check(world, map_together(world, world, 100, 2))


def test_ranks_that_map_a_file_see_the_same_memory(place):
    def check(world, memory):
        memory.bytes[world.rank] = world.rank + 1
        world.barrier()
        assert memory.bytes[:4].tolist() == [1, 2, 3, 0]
        assert memory.bytes.size == 100
        assert list(place.iterdir()) == []

    run_world(3, in_files(check))


def test_a_lock_keeps_out_other_files_and_other_threads(place):
    """Two ranks, and in each of them two threads that share its open file."""

    def check(world, memory):
        counter = memory.bytes[:8].view(np.int64)

        def count():
            for _ in range(200):
                with memory.hold(1):
                    seen = int(counter[0])
                    time.sleep(0)  # others would step in here
                    counter[0] = seen + 1

        threads = [threading.Thread(target=count) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        world.barrier()
        assert counter[0] == 800

    run_world(2, in_files(check))


def test_locks_are_independent(place):
    def check(world, memory):
        with memory.hold(world.rank):
            world.barrier()  # both are inside at once

    run_world(2, in_files(check), timeout_s=10)


def test_what_is_missing_is_said_with_a_remedy(place, monkeypatch):
    # Trying it would fill the place for a moment, and others would fail.
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: pytest.fail("tried it"))
    with pytest.raises(WorldError) as caught:
        make_file(place, 2**50)
    text = str(caught.value)
    status = os.statvfs(place)
    free = int(text.split(" are needed and ")[1].split()[0])
    assert abs(free - status.f_bavail * status.f_frsize) < 2**30
    assert text.startswith(
        f"{2**50} bytes of node memory are needed and {free} are free in {place}."
    )
    assert f"Enlarge {place}," in text
    assert list(place.iterdir()) == []


def test_a_place_that_fills_up_meanwhile_is_the_same_error(place, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WorldError, match=r"100 bytes of node memory are needed and \d+ are free"):
        make_file(place, 100)
    assert list(place.iterdir()) == []


def test_nobody_goes_on_or_hangs_when_one_rank_cannot_open_it(place, monkeypatch):
    def refuse_one(path, *rest):
        if threading.current_thread().name == "rank-2":
            raise PermissionError(13, "Permission denied")
        return open_file(path, *rest)

    def program(world):
        with pytest.raises(WorldError) as caught:
            map_together(world, world, 100, 1)
        world.barrier()
        return str(caught.value)

    monkeypatch.setattr(memory, "open_file", refuse_one)
    heard = run_world(4, program, timeout_s=10)
    assert heard == ["on threads: node memory is not available: [Errno 13] Permission denied"] * 4
    assert list(place.iterdir()) == []


def test_ranks_of_a_node_must_ask_alike(place):
    def program(world):
        with pytest.raises(WorldError, match="ask for node memory of different sizes"):
            map_together(world, world, 100 + world.rank, 1)

    run_world(2, program, timeout_s=10)
    assert list(place.iterdir()) == []


def test_closing_gives_everything_back(place):
    if not Path("/proc/self/fd").exists():
        pytest.skip("looks for open files in /proc, which only Linux has")
    path = make_file(place, 10_000)

    def is_open():
        return any(os.path.realpath(file) == str(path) for file in Path("/proc/self/fd").iterdir())

    mine = open_file(path, 10_000, 1)
    assert is_open()
    mine.close()
    assert not is_open()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_the_place_is_the_job_directory_if_it_exists(place, monkeypatch):
    assert find_place() == place
    monkeypatch.setenv("OMPI_MCA_btl_sm_backing_directory", str(place / "on-another-node"))
    assert find_place() == Path("/dev/shm")
    monkeypatch.setattr(memory, "_SHARED_MEMORY", str(place / "missing"))
    monkeypatch.setattr(memory.tempfile, "gettempdir", lambda: str(place / "temporary"))
    assert find_place() == place / "temporary"


def test_too_little_space_is_an_error_with_advice_for_every_rule(tmp_path):
    with pytest.raises(WorldError) as caught:
        make_file(tmp_path, 10**18)
    assert re.search(r"1000000000000000000 bytes .* and \d+ are free", str(caught.value))
    assert f"Enlarge {tmp_path}" in str(caught.value)
    assert "rule." not in str(caught.value)


@pytest.fixture
def file(tmp_path) -> Path:
    return make_file(tmp_path, 4096)


def test_node_memory_is_for_its_user_alone(file):
    assert file.name.startswith(PREFIX)
    assert file.stat().st_mode & 0o777 == 0o600
    open_file(file, 4096, 1).close()


@needs_root
def test_what_another_user_has_put_in_its_place_is_not_mapped(file):
    give_away(file)
    with pytest.raises(OSError, match="belongs to user 65534"):
        open_file(file, 4096, 1)


def test_no_link_in_its_place_is_followed(file, tmp_path):
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="it is a link"):
        open_file(file, 4096, 1)


@pytest.mark.timeout(20)
def test_no_fifo_in_its_place_is_waited_for(file):
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(OSError, match="not a plain file"):
        open_file(file, 4096, 1)
