import mmap
import os
from pathlib import Path

import pytest

from paceline.cluster import identity
from paceline.runtime import reaper as module
from paceline.runtime.reaper import remove_segments

START_S = 1_000_000.0


@pytest.fixture
def shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path)
    return tmp_path


def segment(folder: Path, name: str, age_s: float = -1.0) -> Path:
    path = folder / name
    path.write_bytes(b"\0" * mmap.PAGESIZE)
    os.utime(path, (START_S - age_s, START_S - age_s))
    return path


def test_the_folder_goes_by_the_same_name_as_elsewhere():
    assert module.JOB_DIR == identity.JOB_DIR


def test_segments_of_the_job_are_removed_and_no_others(shared_memory):
    ours = segment(shared_memory, "mpich_shm_118637c7_0")
    others = [
        segment(shared_memory, "mpich_shm_736ee521_0", age_s=1.0),
        segment(shared_memory, "mpich_shm_mine"),
        segment(shared_memory, "sm_segment.n01.0.ecd40000.0"),
    ]
    remove_segments(START_S)
    assert sorted(shared_memory.iterdir()) == sorted(others)
    assert not ours.exists()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc on this system")
def test_a_segment_that_a_process_maps_is_left(shared_memory):
    path = segment(shared_memory, "mpich_shm_118637c7_0")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        remove_segments(START_S)
        assert path.exists()
    remove_segments(START_S)
    assert not path.exists()


def test_a_segment_of_another_user_is_left(shared_memory, monkeypatch):
    path = segment(shared_memory, "mpich_shm_118637c7_0")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    remove_segments(START_S)
    assert path.exists()
