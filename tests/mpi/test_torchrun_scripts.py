"""Scripts for torchrun, not changed by a letter, under `paceline run`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.ranks import clean_environment

from paceline.errors import LaunchError
from paceline.launch.mpirun import find_mpirun

pytest.importorskip("torch")
try:
    KIND = find_mpirun().kind
except LaunchError as error:
    pytest.skip(f"no mpirun: {error}", allow_module_level=True)

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = PROGRAMS / "torchrun_script.py"
LOOPBACK = "0100007F"
HANG_S = 150
pytestmark = [
    pytest.mark.timeout(2 * HANG_S + 10),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net"),
]


def read(done: subprocess.CompletedProcess[str], code: int = 0) -> list[dict[str, Any]]:
    """What the ranks said, in their order."""
    assert done.returncode == code, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda said: int(said["RANK"]))


def test_ranks_find_themselves_as_under_torchrun_and_end_with_one_that_raises(paceline):
    """The variables are torchrun's, there is no MPI, and nobody listens to the outside. The only
    message is that of the exception, and nothing of native threads that are busy meanwhile, nor of
    ranks that were left. Exit codes of their own are asked for on real hosts, in tests/clusters."""
    done = paceline("run", "-n", "2", "--", SCRIPT, "raise", timeout_s=HANG_S)
    said = read(done, code=1)
    same = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    for rank, one in enumerate(said):
        assert one | same | {"RANK": str(rank), "LOCAL_RANK": str(rank), "mpi": False} == one
        assert one["loss"] == said[0]["loss"]
    assert len(said) == 2
    check_meeting(said)
    assert done.stderr.count("Traceback") == 1, done.stderr
    *_, error, last = done.stderr.splitlines()
    assert error == "ValueError: not my day"
    assert re.fullmatch(r"paceline: ValueError on rank 1 \(\S+\); all ranks were ended", last)


def check_meeting(said: list[dict[str, Any]]) -> None:
    for one in said:
        assert (one["address"], one["port"]) == ("127.0.0.1", said[0]["port"])
        assert set(one["listens"]) <= {LOOPBACK}
    assert said[0]["listens"] == [LOOPBACK]


@pytest.mark.slow
def test_the_same_as_under_torchrun(paceline):
    """The same variables and losses."""
    torchrun = str(Path(sys.executable).parent / "torchrun")
    theirs = subprocess.run(
        [torchrun, "--standalone", "--nproc-per-node=2", str(SCRIPT)],
        env=clean_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    expected = read(theirs)
    said = read(paceline("run", "-n", "2", "--threads", "1", "--", SCRIPT, timeout_s=HANG_S))
    free = ("address", "port", "gloo", "listens")
    assert [{k: v for k, v in one.items() if k not in free} for one in said] == [
        {k: v for k, v in one.items() if k not in free} for one in expected
    ]
    check_meeting(said)


@pytest.mark.slow
def test_tcp_with_the_two_variables_and_the_address_of_the_user(paceline):
    given = {"MASTER_ADDR": "localhost"}
    done = paceline("run", "-n", "2", "--", SCRIPT, "tcp", timeout_s=HANG_S, **given)
    said = read(done)
    assert [one["RANK"] for one in said] == ["0", "1"]
    assert [one["mpi"] for one in said] == [False, False]
    assert said[0]["address"] == "localhost"
    assert said[0]["listens"] == [LOOPBACK]
    assert done.stderr == ""


@pytest.mark.slow
def test_one_rank_is_a_world_of_one(paceline):
    (said,) = read(paceline("run", "-n", "1", "--", SCRIPT))
    assert (said["RANK"], said["WORLD_SIZE"], said["LOCAL_WORLD_SIZE"]) == ("0", "1", "1")
    assert said["listens"] == [LOOPBACK]


@pytest.mark.slow
def test_a_rank_may_start_torchrun_itself(paceline):
    said = read(paceline("run", "-n", "2", "--", SCRIPT, "nest", timeout_s=HANG_S))
    assert [one["RANK"] for one in said] == ["0", "1"]


@pytest.mark.slow
def test_with_one_word_changed_they_go_by_mpi(paceline):
    """The two variables do not lead astray who asks for MPI; nor is our own detection."""
    done = paceline("run", "-n", "2", "--", PROGRAMS / "torchrun_by_mpi.py", timeout_s=HANG_S)
    assert done.returncode == 0, done.stderr
    kind = {"mpich": "hydra"}.get(KIND, KIND)
    found = "sum 3 by mpi4py, inside True, port used False, GPUs dealt False"
    assert done.stdout == 2 * f"{found}, {kind}, world of 2\n"


@pytest.mark.slow
@pytest.mark.skipif(KIND != "openmpi", reason="Open MPI's words for mpirun")
def test_under_an_mpirun_of_the_user_they_meet_by_mpi():
    """It has told nobody where to meet; so MPI does."""
    mpirun = [find_mpirun().path, "-n", "2", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    done = subprocess.run(
        [*mpirun, sys.executable, "-m", "paceline", "run", "--", str(SCRIPT), "short"],
        env=clean_environment(
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
            OMPI_MCA_osc="^ucx",
            PRTE_MCA_plm_ssh_agent="false",
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    said = read(done)
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in said] == [("0", "0"), ("1", "1")]
    assert [one["mpi"] for one in said] == [True, True]
    assert said[0]["loss"] == said[1]["loss"]
