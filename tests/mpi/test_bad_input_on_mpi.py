"""Data that is bad on one rank alone ends all of them, and the message says where it is bad."""

import re

import pytest

pytestmark = pytest.mark.timeout(150)
HANG_S = 120

SAID = {
    "missing": ["rank 1 (", "cannot open the training data", "no file data.npz"],
    "damaged": ["rank 1 (", "cannot open the training data", "data.npz is truncated"],
    "short": ["rank 1 has 900 training samples, rank 0 has 1000", "data.npz"],
    "other": ["rank 1 (", "has other training samples than rank 0", "data.npz"],
    "cut": ["DataError on rank 1 (", "x.npy changed while it was trained on", "200 bytes"],
}
"""By how it is bad: what the message holds."""


def check_message(done, how):
    assert done.returncode == 1, done.stderr
    for part in SAID[how]:
        assert part in done.stderr
    assert done.stderr.count("DataError") == 1, "one failure, one message"
    assert "Traceback" not in done.stderr


def test_a_script_that_catches_the_error_finds_all_ranks_beside_it(mpirun, tmp_path):
    """What shows before the training is found by all; what shows in it ends all."""
    caught = [how for how in SAID if how != "cut"]
    done = mpirun(2, "bad_input.py", tmp_path, *caught, "cut", timeout_s=HANG_S)
    check_message(done, "cut")
    for how in caught:
        messages = dict(re.findall(rf"CAUGHT (\d) {how}: (.*)", done.stdout))
        assert set(messages) == {"0", "1"}, done.stdout
        for part in SAID[how]:
            assert part in messages["0"]
    assert "CAUGHT 1 missing: there is no file data.npz" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("how", [how for how in SAID if how != "cut"])
def test_all_ranks_end_and_the_message_names_rank_and_file(mpirun, tmp_path, how):
    check_message(mpirun(2, "bad_input.py", tmp_path, how, timeout_s=HANG_S), how)
