"""Ranks that wait for one that will not come, under real mpirun."""

import contextlib
import json
import re
import uuid
from pathlib import Path

import pytest

from paceline.errors import LaunchError
from paceline.launch.local import find_mpirun

try:
    find_mpirun()
except LaunchError as error:
    pytest.skip(f"no mpirun: {error}", allow_module_level=True)


def living(marker: str) -> list[str]:
    """The processes whose command line holds the marker."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
    return found


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("who", "others"), [(1, "rank 0, 2 wait"), (0, "rank 1, 2 wait")])
def test_a_rank_that_ends_while_others_wait_ends_them(mpirun, who, others):
    done = mpirun(3, "stall.py", "exit", who, timeout_s=40)
    assert done.returncode != 0
    assert re.search(
        rf"WorldError.*: rank {who} \(\S+\) has ended while {others} for it", done.stderr
    )
    assert "stall.py:" in done.stderr


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("who", "others"), [(1, "rank 0, 2 wait"), (0, "rank 1 waits")])
def test_a_rank_that_was_stopped_is_named_and_the_run_ends(mpirun, who, others):
    marker = f"marker-{uuid.uuid4().hex}"
    done = mpirun(3, "stall.py", "stop", who, marker, timeout_s=40)
    assert done.returncode != 0
    assert living(marker) == []  # the stopped one neither
    found = (
        rf"nothing has moved for \d+ s at step 3: {others} for rank {who} \(\S+\), which has not"
    )
    assert re.search("paceline: " + found, done.stderr)
    assert re.search(rf"WorldError.*: {found}.* ended \(stall_timeout_s\)", done.stderr)


@pytest.mark.timeout(60)
def test_ranks_that_wait_for_each_other_are_ended(mpirun):
    done = mpirun(2, "stall.py", "apart", 1, timeout_s=40)
    assert done.returncode != 0
    places = r"rank 0 in stall.py:\d+ train, rank 1 in stall.py:\d+ load"
    assert re.search(rf"WorldError.*all ranks wait for each other \({places}\); ended", done.stderr)


@pytest.mark.timeout(60)
def test_a_rank_that_takes_long_is_named_and_the_run_goes_on(mpirun):
    done = mpirun(2, "stall.py", "busy", 1, 2, timeout_s=40)
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("paceline:")]
    assert len(lines) == 2
    assert re.search(r"at step 3: rank 0 waits for rank 1 .*, busy in stall.py:\d+ load", lines[0])
    assert re.fullmatch(r"paceline: moving again after \d s", lines[1])


@pytest.mark.timeout(60)
def test_a_run_that_is_slow_but_moves_is_left_alone(mpirun):
    done = mpirun(2, "stall.py", "slow", 1, timeout_s=40)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_end_together_end_at_once(mpirun, ranks):
    done = mpirun(ranks, "stall.py", "train", 0, timeout_s=40)
    assert (done.returncode, done.stderr) == (0, "")
    took_s = [float(text) for text in re.findall(r"LEFT after ([\d.]+) s", done.stdout)]
    assert len(took_s) == ranks
    assert max(took_s) < 0.5  # less than a beat: nobody waits for the next one


@pytest.mark.timeout(60)
def test_the_launchers_folder_tells_where_each_rank_is(mpirun):
    done = mpirun(2, "stall.py", "busy", 1, 2.5, timeout_s=40)
    found = re.search(r"KNOWN (.*)", done.stdout)
    if found is None and find_mpirun().kind != "openmpi":
        pytest.skip("the job has a folder with Open MPI alone")
    known = json.loads(found[1])
    assert [(known[rank]["step"], known[rank]["state"]) for rank in ("0", "1")] == [
        (3, "waiting"),
        (3, "busy"),
    ]
    assert re.fullmatch(r"stall.py:\d+ train", known["0"]["where"])
    assert re.fullmatch(r"stall.py:\d+ load", known["1"]["where"])


@pytest.mark.timeout(60)
def test_a_program_may_end_mpi_itself(mpirun):
    done = mpirun(2, "stall.py", "finalize", 0, timeout_s=40)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall("LEFT after", done.stdout)) == 2
