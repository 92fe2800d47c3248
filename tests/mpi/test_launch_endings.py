"""How jobs under the real mpirun end: by signals to the launcher, and by deaths of processes."""

import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from support.launching import HANG_S, KIND, launch, living, wait_until_gone

from paceline.launch.job_dir import remove_stale_job_dirs

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc on this system"),
]
HYDRA = KIND in ("mpich", "intel")
slow = pytest.mark.slow
SAVING_LINE = "paceline: saving and stopping (again to stop at once)\n"

# A line is one write: ranks under Hydra share a pipe, and print() may write a line in two pieces.
SAVING = """
import os, signal, sys, time
from pathlib import Path
from mpi4py import MPI
world, asked = MPI.COMM_WORLD, []
for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda n, _: asked.append(n))
world.Barrier()
if world.rank == 0:
    Path(os.environ["PACELINE_JOB_DIR"], "saves").touch()
world.Barrier()
os.write(1, b"up\\n")
while not asked or "deaf" in sys.argv:
    time.sleep(0.02)
if "slow" in sys.argv:
    os.write(1, b"saving\\n")
    while not Path(sys.argv[-1]).exists():
        time.sleep(0.02)
time.sleep(0.3)
os.write(1, b"asked %d\\n" % sum(asked))
MPI.Finalize()
sys.exit(75)
"""
HEARING = """
import os, signal, time
from mpi4py import MPI
heard = []
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda n, _: heard.append(n))
MPI.COMM_WORLD.Barrier()
os.write(1, b"up\\n")
while not heard:
    time.sleep(0.02)
os.write(1, b"heard %d\\n" % sum(heard))
"""
WAITING = """
import json, os, time
from pathlib import Path
from mpi4py import MPI
world = MPI.COMM_WORLD
if world.rank == 0:
    pulse = {str(r): {"node": "n", "step": 120 + r} for r in range(world.size)}
    Path(os.environ["PACELINE_JOB_DIR"], "heartbeats.json").write_text(json.dumps(pulse))
world.Barrier()
os.write(1, b"up %d %d\\n" % (world.rank, os.getpid()))
time.sleep(100)
"""


class Running:
    """Two ranks of a program under our launcher."""

    def __init__(self, program: str, *args: str, **env: str) -> None:
        self.marker = f"marker-{uuid.uuid4().hex}"
        self.launcher = launch(program, self.marker, *args, **env)

    def wait_until_up(self) -> None:
        lines = [self.launcher.stdout.readline().split() for _ in range(2)]
        assert [line[0] for line in lines] == ["up", "up"]
        self.pids = {int(line[1]): int(line[2]) for line in lines if len(line) > 1}
        self.mapped = set().union(*map(mapped_by, living(self.marker)))

    @property
    def mpirun(self) -> int:
        pid = self.launcher.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        (mpirun,) = (c for c in children if "reaper" not in command_of(c))
        return int(mpirun)

    def end(self) -> tuple[int, str, str]:
        out, err = self.launcher.communicate(timeout=HANG_S)
        return self.launcher.returncode, out, err

    def left(self) -> list[str]:
        """Processes and shared memory that do not go; the limit is for a hang."""
        end = time.monotonic() + HANG_S
        while (found := self._left()) and time.monotonic() < end:
            time.sleep(0.02)
        return found

    def _left(self) -> list[str]:
        folders = Path("/dev/shm").glob(f"paceline-{self.launcher.pid}-*")
        files = [path for path in self.mapped if Path(path).exists()]
        return [*living(self.marker), *map(str, folders), *files]


@pytest.fixture
def start():
    """Start two ranks of a program; what still runs when the test is over is killed."""
    jobs = []

    def run(program: str, *args: str, **env: str) -> Running:
        jobs.append(Running(program, *args, **env))
        jobs[-1].wait_until_up()
        return jobs[-1]

    yield run
    for job in jobs:
        job.launcher.kill()
        job.launcher.communicate(timeout=HANG_S)


def mapped_by(pid: str) -> set[str]:
    """The files of the shared memory that a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[5] for line in lines if " /dev/shm/" in line}


def command_of(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        ("INT", 130),
        ("TERM", 75),
        pytest.param("HUP", 75, marks=slow),
        pytest.param("USR1", 75, marks=slow),
        pytest.param("USR2", 75, marks=slow),
    ],
)
def test_ranks_that_can_save_are_asked_to_once(start, number, code):
    job = start(SAVING)
    job.launcher.send_signal(signal.Signals[f"SIG{number}"])
    assert job.end() == (code, f"asked {signal.SIGUSR1:d}\n" * 2, SAVING_LINE)
    assert job.left() == []


def test_a_scheduler_that_warns_and_then_ends_does_not_cut_the_saving_short(start, tmp_path):
    saved = tmp_path / "saved"
    job = start(SAVING, "slow", str(saved))
    job.launcher.send_signal(signal.SIGUSR2)
    assert [job.launcher.stdout.readline() for _ in range(2)] == ["saving\n"] * 2
    job.launcher.send_signal(signal.SIGTERM)
    assert [job.launcher.stderr.readline() for _ in range(2)] == [SAVING_LINE] * 2
    saved.touch()
    assert job.end() == (75, f"asked {signal.SIGUSR1:d}\n" * 2, "")


def test_a_second_interrupt_ends_ranks_that_save_at_once(start):
    job = start(SAVING, "deaf")
    job.launcher.send_signal(signal.SIGINT)
    assert job.launcher.stderr.readline() == SAVING_LINE
    job.launcher.send_signal(signal.SIGINT)
    assert job.end() == (130, "", "")
    assert job.left() == []


@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGUSR2, marks=slow)])
def test_user_signals_reach_ranks_that_cannot_save_as_they_are(start, number):
    if HYDRA and number == signal.SIGUSR2:
        pytest.skip("Hydra would end by a SIGUSR2")
    job = start(HEARING)
    job.launcher.send_signal(number)
    assert job.end() == (0, f"heard {number:d}\n" * 2, "")


@pytest.mark.skipif(not HYDRA, reason=f"{KIND} passes SIGUSR2 on")
def test_a_sigusr2_that_hydra_cannot_pass_on_is_dropped(start):
    job = start(HEARING)
    job.launcher.send_signal(signal.SIGUSR2)
    assert "SIGUSR2 was dropped" in job.launcher.stderr.readline()
    job.launcher.send_signal(signal.SIGUSR1)
    assert job.end() == (0, f"heard {signal.SIGUSR1:d}\n" * 2, "")


@pytest.mark.parametrize("rank", [pytest.param(0, marks=slow), 1])
def test_a_killed_rank_is_told_in_one_message(start, rank):
    job = start(WAITING)
    time.sleep(1.2 if HYDRA else 0)  # Hydra names no rank: the launcher looks once a second
    subprocess.run(["kill", "-9", str(job.pids[rank])], check=True)
    assert job.end() == (
        137,
        "",
        f"paceline: rank {rank} ({socket.gethostname()}) was killed by signal 9 (SIGKILL: by hand, "
        f"or out of memory) at step {120 + rank}; all ranks were ended\n",
    )
    assert job.left() == []


@slow
def test_raw_shows_what_mpirun_says_of_a_killed_rank(start):
    job = start(WAITING, PACELINE_RAW="1")
    subprocess.run(["kill", "-9", str(job.pids[1])], check=True)
    code, out, err = job.end()
    assert code == (9 if HYDRA else 137)
    assert re.search(r"exited on\s+signal 9|\(signal 9\)", out + err)
    assert "paceline:" not in err


def test_a_killed_mpirun_is_told_in_one_message(start):
    job = start(WAITING)
    subprocess.run(["kill", "-9", str(job.mpirun)], check=True)
    code, _, err = job.end()
    assert code == 137
    assert re.fullmatch(
        r"paceline: mpi\w+ was killed by signal 9 \(SIGKILL: by hand, or out of memory\); "
        r"all ranks were ended\n",
        err,
    )
    assert job.left() == []


def test_nothing_outlives_a_launcher_that_was_killed(start):
    job = start(WAITING)
    job.launcher.kill()
    job.launcher.communicate(timeout=HANG_S)
    assert job.left() == []


def test_folders_of_launchers_whom_nobody_cleared_up_after_go_later():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    folder = Path(f"/dev/shm/paceline-{gone.pid}-{uuid.uuid4().hex}")
    folder.mkdir()
    remove_stale_job_dirs()  # it may belong to somebody whom we cannot see
    assert folder.exists()
    remove_stale_job_dirs(unused_s=0)
    assert not folder.exists()


def test_the_reaper_of_a_launcher_that_ends_touches_nothing(tmp_path):
    from paceline.runtime.reaper import reaper_beside

    marker = f"marker-{uuid.uuid4().hex}"
    sleep = "import time; time.sleep(100)"
    sleeper = subprocess.Popen([sys.executable, "-c", sleep, marker], start_new_session=True)
    try:
        with reaper_beside(tmp_path, None) as guard:
            guard.set_session(sleeper.pid)
        assert tmp_path.exists()
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()
    assert wait_until_gone(marker) == []
