"""Files larger than memory, and files copied once per node, under real mpirun."""

import json
import re
import time

import pytest

pytest.importorskip("h5py")


def test_20_gb_stream_in_little_memory_and_small_files_by_way_of_the_node(mpirun, tmp_path):
    done = mpirun(2, "streamed_files.py", tmp_path, timeout_s=100)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(re.search(r"OUTCOME (.*)", done.stdout)[1])
    huge = [path.stat() for path in tmp_path.glob("huge-*.h5")]
    assert sum(found.st_size for found in huge) < 2**20
    assert outcome["samples"] >= 320 * 2 * 32  # 640 MB on each rank: more than it may take
    assert not outcome["torch"]
    assert max(outcome["peak_mb"]) < 500
    assert outcome["cached"] == [["small-0.h5", "small-1.h5", "small-2.h5"]] * 2
    assert outcome["trained"] == 120
    assert outcome["left"] == []
    assert "3 of 3 files" in done.stderr


def test_the_copies_go_when_a_rank_fails(mpirun, tmp_path):
    done = mpirun(2, "streamed_files.py", tmp_path, "fail", timeout_s=100)
    assert done.returncode != 0
    assert "a rank that fails" in done.stderr
    deadline = time.monotonic() + 30
    while any((tmp_path / "cache").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list((tmp_path / "cache").iterdir()) == []
