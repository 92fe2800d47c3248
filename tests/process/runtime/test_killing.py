"""A rank that hangs is killed by another of its node, though it may be stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.comm import run_world
from paceline.runtime.watchdog.killing import Killer, Orders, Process, kill, own_process

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def stopped():
    child = subprocess.Popen(
        [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"]
    )
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    yield child
    child.kill()
    child.wait()


def process_of(child) -> Process:
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return Process("here", child.pid, int(fields[19]))


@pytest.mark.parametrize("by", [0, 2], ids=["by the judge", "by its order"])
def test_a_stopped_process_is_killed(stopped, by):
    """Rank 0 judges; rank 2 is on the node of rank 1, which was stopped."""

    def program(world):
        processes = [own_process("here"), process_of(stopped), own_process("here")]
        if world.rank == 0:
            Killer(world, processes).kill(1, by)
        if world.rank == 2:
            orders = Orders(world)
            while by == 2 and stopped.poll() is None:
                orders.obey()
                time.sleep(0.001)
            orders.close()

    run_world(3, program, timeout_s=30)
    assert stopped.wait(30) == -signal.SIGKILL


def test_another_process_that_has_got_the_pid_is_left_alone(stopped):
    kill(process_of(stopped)._replace(began=7))
    assert stopped.poll() is None


def test_what_has_gone_harms_nobody():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    kill(Process("here", child.pid, -1))
