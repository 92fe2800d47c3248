"""Scripts for torchrun, not changed by a letter, under `paceline run`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import clean_environment

from paceline.errors import LaunchError
from paceline.launch.local import find_mpirun

pytest.importorskip("torch")
try:
    KIND = find_mpirun().kind
except LaunchError as error:
    pytest.skip(f"no mpirun: {error}", allow_module_level=True)

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = PROGRAMS / "torchrun_script.py"
LOOPBACK = "0100007F"
pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net"),
]


def read(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What the ranks said, in their order."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda said: int(said["RANK"]))


def test_the_same_as_under_torchrun(paceline):
    """The same variables and losses; no MPI, and nobody listens to the outside."""
    torchrun = str(Path(sys.executable).parent / "torchrun")
    theirs = subprocess.run(
        [torchrun, "--standalone", "--nproc-per-node=2", str(SCRIPT)],
        env=clean_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    expected = read(theirs)
    said = read(paceline("run", "-n", "2", "--threads", "1", "--", SCRIPT, timeout_s=120))
    free = ("address", "port", "gloo", "listens")
    assert [{k: v for k, v in one.items() if k not in free} for one in said] == [
        {k: v for k, v in one.items() if k not in free} for one in expected
    ]
    for one in said:
        assert (one["address"], one["port"]) == ("127.0.0.1", said[0]["port"])
        assert set(one["listens"]) <= {LOOPBACK}
    assert said[0]["listens"] == [LOOPBACK]


def test_tcp_with_the_two_variables_and_the_address_of_the_user(paceline):
    given = {"MASTER_ADDR": "localhost"}
    done = paceline("run", "-n", "2", "--", SCRIPT, "tcp", timeout_s=120, **given)
    said = read(done)
    assert [one["RANK"] for one in said] == ["0", "1"]
    assert [one["mpi"] for one in said] == [False, False]
    assert said[0]["address"] == "localhost"
    assert said[0]["listens"] == [LOOPBACK]
    assert done.stderr == ""


def test_one_rank_is_a_world_of_one(paceline):
    (said,) = read(paceline("run", "-n", "1", "--", SCRIPT))
    assert (said["RANK"], said["WORLD_SIZE"], said["LOCAL_WORLD_SIZE"]) == ("0", "1", "1")
    assert said["listens"] == [LOOPBACK]


def test_a_rank_that_fails_ends_all(paceline):
    """Exit codes of their own are asked for on real hosts, in tests/clusters."""
    done = paceline("run", "-n", "2", "--", SCRIPT, "raise", timeout_s=120)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("ValueError: not my day") >= 1


def test_a_rank_may_start_torchrun_itself(paceline):
    said = read(paceline("run", "-n", "2", "--", SCRIPT, "nest", timeout_s=120))
    assert [one["RANK"] for one in said] == ["0", "1"]


def test_with_one_word_changed_they_go_by_mpi(paceline):
    """The two variables do not lead astray who asks for MPI; nor is our own detection."""
    done = paceline("run", "-n", "2", "--", PROGRAMS / "torchrun_by_mpi.py", timeout_s=120)
    assert done.returncode == 0, done.stderr
    kind = {"mpich": "hydra"}.get(KIND, KIND)
    found = "sum 3 by mpi4py, inside True, port used False, GPUs dealt False"
    assert done.stdout == 2 * f"{found}, {kind}, world of 2\n"


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
        timeout=120,
    )
    said = read(done)
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in said] == [("0", "0"), ("1", "1")]
    assert [one["mpi"] for one in said] == [True, True]
    assert said[0]["loss"] == said[1]["loss"]
