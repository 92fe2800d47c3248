"""Ranks that wait for one that will not come, under real mpirun."""

import json
import re
import uuid

import pytest
from support.launching import wait_until_gone

pytestmark = pytest.mark.timeout(150)
HANG_S = 120


@pytest.mark.parametrize(
    ("who", "others"),
    [(1, "rank 0, 2 wait"), pytest.param(0, "rank 1, 2 wait", marks=pytest.mark.slow)],
)
def test_a_rank_that_ends_while_others_wait_ends_them(mpirun, who, others):
    done = mpirun(3, "stall.py", "exit", who, timeout_s=HANG_S)
    assert done.returncode != 0
    assert re.search(
        rf"WorldError.*: rank {who} \(\S+\) has ended while {others} for it", done.stderr
    )
    assert "stall.py:" in done.stderr


@pytest.mark.parametrize(
    ("who", "others"),
    [pytest.param(1, "rank 0, 2 wait", marks=pytest.mark.slow), (0, "rank 1 waits")],
)
def test_a_rank_that_was_stopped_is_named_and_the_run_ends(mpirun, who, others):
    """Of rank 0, which judges, rank 1 tells it."""
    marker = f"marker-{uuid.uuid4().hex}"
    done = mpirun(3, "stall.py", "stop", who, marker, timeout_s=HANG_S)
    assert done.returncode != 0
    assert wait_until_gone(marker) == []  # the stopped one neither
    found = (
        rf"nothing has moved for \d+ s at step 3: {others} for rank {who} \(\S+\), which has not"
    )
    assert re.search("paceline: " + found, done.stderr)
    assert re.search(rf"WorldError.*: {found}.* ended \(stall_timeout_s\)", done.stderr)


@pytest.mark.slow
def test_ranks_that_wait_for_each_other_are_ended(mpirun):
    done = mpirun(2, "stall.py", "apart", 1, timeout_s=HANG_S)
    assert done.returncode != 0
    places = r"rank 0 in stall.py:\d+ train, rank 1 in stall.py:\d+ load"
    assert re.search(rf"WorldError.*all ranks wait for each other \({places}\); ended", done.stderr)


def test_a_rank_that_takes_long_is_named_and_the_run_goes_on(mpirun):
    """On stderr, and with the place of each rank in the job's folder, for the launcher."""
    done = mpirun(2, "stall.py", "busy", 1, timeout_s=HANG_S)
    assert done.returncode == 0, done.stderr
    busy = r"told.py:\d+ \w+"
    assert re.search(
        rf"^paceline: nothing has moved for \d+ s at step (\d+): rank 0 waits for rank 1 \(\S+\), "
        rf"busy in {busy}\n(.*\n)*paceline: moving again after \d+ s$",
        done.stderr,
        re.MULTILINE,
    )
    known = json.loads(re.search(r"KNOWN (.*)", done.stdout)[1])
    assert [known[rank]["state"] for rank in ("0", "1")] == ["waiting", "busy"]
    assert known["0"]["step"] == known["1"]["step"] >= 3
    assert re.fullmatch(r"stall.py:\d+ train", known["0"]["where"])
    assert re.fullmatch(busy, known["1"]["where"])


@pytest.mark.slow
def test_a_run_that_is_slow_but_moves_is_left_alone(mpirun):
    """It takes longer than a stall may, and no step of it does."""
    done = mpirun(2, "stall.py", "slow", 1, timeout_s=HANG_S)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_that_end_together_end_at_once(mpirun, ranks):
    """Nobody waits for the next beat, which here never comes."""
    done = mpirun(ranks, "stall.py", "train", 0, timeout_s=HANG_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("LEFT") == ranks


@pytest.mark.slow
def test_a_program_may_end_mpi_itself(mpirun):
    done = mpirun(2, "stall.py", "finalize", 0, timeout_s=HANG_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("LEFT") == 2
