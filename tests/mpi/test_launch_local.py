"""Ranks started by the real mpirun of this environment."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from paceline.errors import LaunchError
from paceline.launch.local import find_mpirun

try:
    KIND = find_mpirun().kind
except LaunchError as error:
    pytest.skip(f"no mpirun: {error}", allow_module_level=True)

LAUNCH = """
import sys
from paceline.launch.command import Job
from paceline.launch.local import start
sys.exit(start(Job(int(sys.argv[1]), 1, (sys.executable, *sys.argv[2:]))))
"""
HELLO = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
asked = os.environ["PACELINE_RANKS"]
print(f"rank {world.rank} of {world.size} asked {asked}\\n", end="", flush=True)
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
READ_STDIN = "import sys; from mpi4py import MPI; print(repr(sys.stdin.read()), flush=True)"
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
from paceline.launch.foreground import run_foreground
sys.exit(run_foreground([sys.executable, *sys.argv[1:]], os.environ))
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


def launch(program: str, *args: str, ranks: int = 2, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(ranks), "-c", program, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


def run_directly(program: str) -> tuple[subprocess.Popen[str], str]:
    """Run a program in the place of mpirun: one that misbehaves in a way mpirun rarely does."""
    marker = f"marker-{uuid.uuid4().hex}"
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "-c", program, marker], stdout=subprocess.PIPE, text=True
    )
    return process, marker


def run(program: str, ranks: int = 2, **env: str) -> tuple[int, str, str]:
    process = launch(program, ranks=ranks, **env)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def living(marker: str) -> list[str]:
    """The processes whose command line holds the marker, those that only wait to be reaped not."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if marker.encode() in command and state != "Z":
            found.append(entry.name)
    return found


def wait_until_gone(marker: str, seconds: float) -> list[str]:
    end = time.monotonic() + seconds
    while (left := living(marker)) and time.monotonic() < end:
        time.sleep(0.02)
    return left


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
    last = subprocess.Popen(["true"])
    last.wait()
    for pid in range(last.pid + 1, last.pid + 500):
        (tmp_path / f"ompi.{pid}").mkdir()
        (tmp_path / f"ompi.{pid}" / f"pmix.{socket.gethostname()}.tool").touch()
    code, _, err = run(HELLO, ranks=1, TMPDIR=str(tmp_path))
    assert (code, err) == (0, "")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_form_the_world_that_was_asked_for(ranks):
    code, out, err = run(HELLO, ranks)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"rank {r} of {ranks} asked {ranks}" for r in range(ranks)]


LISTENING = """
import os
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
own = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
       and os.path.lexists(f"/proc/self/fd/{fd}")}
lines = [line.split() for kind in ("tcp", "tcp6") for line in open(f"/proc/self/net/{kind}")]
ports = [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]
print("LISTENS", ports)
MPI.COMM_WORLD.Barrier()
"""


def test_ranks_listen_to_nobody():
    if find_mpirun().kind != "openmpi":
        pytest.skip("Open MPI is told to; others are left as they are")
    code, out, err = run(LISTENING)
    assert code == 0, err
    assert out.count("LISTENS []") == 2, out


def test_the_exit_code_of_a_rank_comes_back():
    assert run(EXIT_3)[0] == 3


def test_an_abort_shows_the_message_of_the_rank_alone():
    code, _, err = run(ABORT_7)
    assert (code, err) == (7, "rank 1 gives up\n")


@pytest.mark.skipif(KIND != "openmpi", reason=f"the banners are Open MPI's, here is {KIND}")
def test_raw_shows_the_banners():
    assert "MPI_ABORT was invoked" in run(ABORT_7, PACELINE_RAW="1")[2]


@pytest.mark.skipif(KIND != "openmpi", reason=f"the banners are Open MPI's, here is {KIND}")
def test_a_job_that_fails_silently_shows_the_banners():
    code, _, err = run(SILENT_ABORT)
    assert code == 5
    assert "MPI_ABORT was invoked" in err


def test_a_rank_that_reads_stdin_finds_its_end():
    assert run(READ_STDIN)[:2] == (0, "''\n" * 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_all_ranks(number):
    process, marker = waiting()
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert wait_until_gone(marker, seconds=5) == []


def test_ranks_that_ignore_sigterm_are_ended_too():
    process, marker = waiting("deaf")
    process.send_signal(signal.SIGTERM)
    if KIND != "openmpi":  # Hydra waits for them
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert wait_until_gone(marker, seconds=5) == []


def test_a_second_interrupt_kills_a_launcher_that_hears_none():
    process, marker = run_directly(DEAF_LAUNCHER)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "heard\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT
    assert wait_until_gone(marker, seconds=5) == []


def test_what_a_launcher_leaves_behind_is_killed():
    process, marker = run_directly(FORGETFUL_LAUNCHER)
    process.communicate(timeout=20)
    assert process.returncode == 4
    assert wait_until_gone(marker, seconds=5) == []
