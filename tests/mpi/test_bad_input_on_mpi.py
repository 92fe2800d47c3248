"""Data that is bad on one rank alone ends all of them, soon, and says where it is bad."""

import time

import pytest


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("missing", ["rank 1 (", "cannot open the training data", "no file data.npz"]),
        ("damaged", ["rank 1 (", "cannot open the training data", "data.npz is truncated"]),
        ("short", ["rank 1 has 900 training samples, rank 0 has 1000", "data.npz"]),
        ("other", ["rank 1 (", "has other training samples than rank 0", "data.npz"]),
        ("cut", ["DataError on rank 1 (", "x.npy changed while it was trained on", "200 bytes"]),
    ],
)
def test_all_ranks_end_and_the_message_names_rank_and_file(mpirun, tmp_path, how, said):
    done = mpirun(2, "bad_input.py", how, tmp_path, timeout_s=50)
    took_s = time.time() - (tmp_path / "bad").stat().st_mtime
    assert done.returncode == 1, done.stderr
    for part in said:
        assert part in done.stderr
    assert done.stderr.count("DataError") == 1, "one failure, one message"
    assert "Traceback" not in done.stderr
    assert took_s < 10


@pytest.mark.timeout(60)
def test_a_script_that_catches_the_error_finds_all_ranks_beside_it(mpirun, tmp_path):
    done = mpirun(2, "bad_input.py", "caught", tmp_path, timeout_s=50)
    assert done.returncode == 0, done.stderr
    assert "CAUGHT 0 rank 1 (" in done.stdout
    assert "CAUGHT 1 there is no file data.npz" in done.stdout
