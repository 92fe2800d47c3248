"""Ranks started by the real mpirun of this environment."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid

import pytest
from support.launching import HANG_S, KIND, launch, wait_until_gone

from paceline.launch.job import Job, Mpirun
from paceline.launch.mpirun import find_mpirun, read_machine
from paceline.launch.mpirun_command import render_command

slow = pytest.mark.slow

HELLO = """
import json, os, sys
from pathlib import Path
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
own = {str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
lines = [line.split() for kind in ("tcp", "tcp6") for line in open(f"/proc/self/net/{kind}")]
found = {
    "rank": world.rank,
    "size": world.size,
    "asked": os.environ["PACELINE_RANKS"],
    "stdin": sys.stdin.read(),
    "listens": [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own],
}
os.write(1, json.dumps(found).encode() + b"\\n")
world.Barrier()
"""
EXIT_3 = """
import sys
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    sys.exit(3)
"""
ABORT_7 = """
import sys
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    print("rank 1 gives up", file=sys.stderr, flush=True)
    MPI.COMM_WORLD.Abort(7)
MPI.COMM_WORLD.Barrier()
"""
SILENT_ABORT = "from mpi4py import MPI; MPI.COMM_WORLD.Abort(5)"
WAIT = """
import os, signal, sys, time
from mpi4py import MPI
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"up\\n")  # one write: print() may take two, and ranks under Hydra share a pipe
time.sleep(100)
"""

RUN = """
import os, sys
from paceline.launch.supervise import supervise_command
sys.exit(supervise_command([sys.executable, *sys.argv[1:]], os.environ))
"""
DEAF_LAUNCHER = """
import signal, time
signal.signal(signal.SIGINT, lambda *_: print("heard", flush=True))
print("up", flush=True)
while True:
    time.sleep(100)
"""
FORGETFUL_LAUNCHER = """
import subprocess, sys
sleeper = [sys.executable, "-c", "import time; time.sleep(100)", sys.argv[1]]
subprocess.Popen(sleeper, process_group=0)
sys.exit(4)
"""
SAME_NUMBER = """#!/bin/sh
mkdir "$TMPDIR/ompi.$$"
touch "$TMPDIR/ompi.$$/pmix.{1}.tool"
exec {0} "$@"
"""
LAUNCH_BY = """
import sys
from paceline.launch.mpirun_command import Job, Mpirun
from paceline.launch.mpirun import start_ranks
sys.exit(start_ranks(Job(1, 1, tuple(sys.argv[3:])), launcher=Mpirun(*sys.argv[1:3])).code)
"""


def run_directly(program: str) -> tuple[subprocess.Popen[str], str]:
    """Run a program in the place of mpirun: one that misbehaves in a way mpirun rarely does."""
    marker = f"marker-{uuid.uuid4().hex}"
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "-c", program, marker], stdout=subprocess.PIPE, text=True
    )
    return process, marker


def run(program: str, ranks: int = 2, **env: str) -> tuple[int, str, str]:
    process = launch(program, ranks=ranks, **env)
    out, err = process.communicate(timeout=HANG_S)
    return process.returncode, out, err


def waiting(*args: str) -> tuple[subprocess.Popen[str], str]:
    """Launch two ranks that wait, and return when both are up."""
    marker = f"marker-{uuid.uuid4().hex}"
    process = launch(WAIT, marker, *args)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    return process, marker


@pytest.mark.skipif(KIND != "openmpi", reason="a habit of Open MPI")
def test_what_a_killed_mpirun_left_stops_no_other_of_its_process_number(tmp_path):
    """The files of one that was killed are named by its number, and numbers come again."""
    again = tmp_path / "mpirun"
    again.write_text(SAME_NUMBER.format(find_mpirun().path, socket.gethostname()))
    again.chmod(0o755)
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    hello = [sys.executable, "-c", HELLO]
    argv, extra = render_command(Job(1, 1, tuple(hello)), Mpirun(str(again), KIND), read_machine())
    bare = subprocess.run(argv, env=env | extra, capture_output=True, timeout=HANG_S)
    assert bare.returncode != 0, "by itself this mpirun stumbles over them"
    argv = [sys.executable, "-c", LAUNCH_BY, str(again), KIND, *hello]
    ours = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=HANG_S)
    assert (ours.returncode, ours.stderr) == (0, "")
    assert json.loads(ours.stdout)["size"] == 1


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=slow), 2, pytest.param(4, marks=slow)])
def test_ranks_form_the_world_that_was_asked_for(ranks):
    """They find the end of stdin, and listen to nobody."""
    code, out, err = run(HELLO, ranks)
    assert (code, err) == (0, "")
    found = sorted(map(json.loads, out.splitlines()), key=lambda one: one["rank"])
    if KIND != "openmpi":  # it is told to; others are left as they are
        found = [one | {"listens": []} for one in found]
    told = {"size": ranks, "asked": str(ranks), "stdin": "", "listens": []}
    assert found == [{"rank": rank, **told} for rank in range(ranks)]


def test_the_exit_code_of_a_rank_comes_back():
    assert run(EXIT_3)[0] == 3


def test_an_abort_shows_the_message_of_the_rank_alone():
    code, _, err = run(ABORT_7)
    assert (code, err) == (7, "rank 1 gives up\n")


@slow
@pytest.mark.skipif(KIND != "openmpi", reason=f"the banners are Open MPI's, here is {KIND}")
def test_raw_shows_the_banners():
    assert "MPI_ABORT was invoked" in run(ABORT_7, PACELINE_RAW="1")[2]


@slow
@pytest.mark.skipif(KIND != "openmpi", reason=f"the banners are Open MPI's, here is {KIND}")
def test_a_job_that_fails_silently_shows_the_banners():
    code, _, err = run(SILENT_ABORT)
    assert code == 5
    assert "MPI_ABORT was invoked" in err


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=slow),
        pytest.param(signal.SIGHUP, marks=slow),
    ],
)
def test_a_signal_to_the_launcher_ends_all_ranks(number):
    process, marker = waiting()
    process.send_signal(number)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + number
    assert wait_until_gone(marker) == []


@slow
def test_ranks_that_ignore_sigterm_are_ended_too():
    process, marker = waiting("deaf")
    process.send_signal(signal.SIGTERM)
    if KIND != "openmpi":  # Hydra waits for them
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANG_S)
    assert wait_until_gone(marker) == []


def test_a_second_interrupt_kills_a_launcher_that_hears_none():
    process, marker = run_directly(DEAF_LAUNCHER)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "heard\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + signal.SIGINT
    assert wait_until_gone(marker) == []


def test_what_a_launcher_leaves_behind_is_killed():
    process, marker = run_directly(FORGETFUL_LAUNCHER)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 4
    assert wait_until_gone(marker) == []
