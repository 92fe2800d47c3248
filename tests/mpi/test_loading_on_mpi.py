"""Files larger than memory, and files copied once per node, under real mpirun."""

import json
import re
import time

import pytest

pytest.importorskip("h5py")


pytestmark = pytest.mark.timeout(200)


def outcome_of(done):
    return json.loads(re.search(r"OUTCOME (.*)", done.stdout)[1])


@pytest.mark.slow
def test_20_gb_stream_in_little_memory(mpirun, tmp_path):
    done = mpirun(2, "streamed_files.py", tmp_path, "huge", timeout_s=180)
    assert done.returncode == 0, done.stderr
    outcome = outcome_of(done)
    huge = [path.stat() for path in tmp_path.glob("huge-*.h5")]
    assert sum(found.st_size for found in huge) < 2**20
    assert outcome["samples"] >= 320 * 2 * 32  # 640 MB on each rank: more than it may take
    assert not outcome["torch"]
    assert max(outcome["peak_mb"]) < 500


def test_files_go_by_way_of_the_node_and_their_copies_go_when_a_rank_fails(mpirun, tmp_path):
    done = mpirun(2, "streamed_files.py", tmp_path, "fail", timeout_s=180)
    outcome = outcome_of(done)
    assert outcome["cached"] == [["small-0.h5", "small-1.h5", "small-2.h5"]] * 2
    assert outcome["trained"] == 120
    assert outcome["left"] == []
    assert done.stderr.count("3 of 3 files") == 2
    assert done.returncode != 0
    assert "a rank that fails" in done.stderr
    hang = time.monotonic() + 60
    while any((tmp_path / "cache").iterdir()) and time.monotonic() < hang:
        time.sleep(0.05)
    assert list((tmp_path / "cache").iterdir()) == []
