"""Where MPI ends with a lost rank, those that are left start again from node memory.

Open MPI is told to do so, too. A rank dies when node memory has a checkpoint: no test depends on
how fast the machine is.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.commands import PACELINE, started, wait_for
from support.launching import HANG_S

from paceline.runtime.job_dir import AGAIN, ELASTIC

pytestmark = pytest.mark.timeout(240)
SLOW = pytest.mark.slow

MODEL = """
import os, signal, time
from pathlib import Path
import numpy as np
from paceline.frameworks.numpy import NumpyReplica

RANK = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK", "0")
FIRST = os.environ.get("PACELINE_RESTART") == "0"


def build():
    return NumpyReplica({"w": np.zeros((784, 10), np.float32)}, loss, 0.05, 0.9)


def loss(arrays, batch):
    if FIRST:
        time.sleep(0.05)
        saved = [*Path(os.environ["PACELINE_NODE_STATE"]).glob("checkpoints/step-*")]
        if saved and RANK == "1":
            what_happens_to_rank_1()
    pixels = batch.inputs.reshape(len(batch.inputs), -1)
    scores = pixels @ arrays["w"]
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(chances))
    value = -np.log(chances[rows, batch.targets] + 1e-12).mean()
    chances[rows, batch.targets] -= 1
    return value, {"w": pixels.T @ chances / len(chances)}


def what_happens_to_rank_1():
    %s
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
FAILS = "raise RuntimeError('out of luck')"
STAYS = "Path('stays').touch(); time.sleep(3600)"
STOPS = "os.kill(os.getpid(), signal.SIGSTOP)"
WORDS = ("mine.py:build", "digits", "--batch-size", "100", "--threads", "1",
         "--run-dir", "run", "--elastic")  # fmt: skip


def start(folder: Path, *words: object, ranks: int = 3, what: str = KILLED):
    (folder / "mine.py").write_text(MODEL % what)
    words = ("train", *WORDS, "-n", ranks, "--epochs", 6, *words)
    return started([PACELINE, *words], folder, **{ELASTIC: AGAIN})


def left_by(job: subprocess.Popen[str]) -> list[Path]:
    return [*Path("/dev/shm").glob(f"paceline-{job.pid}-*")]


def check_events(folder: Path) -> None:
    done = subprocess.run([PACELINE, "events", "check", folder / "run"], capture_output=True)
    assert done.returncode == 0, done.stdout.decode()
    assert b"1 time resumed" in done.stdout


@pytest.mark.parametrize(
    ("rule", "more", "left"),
    [
        ("bsp", (), 2),
        pytest.param("bsp", ("--replace",), 3, marks=SLOW),
        pytest.param("average", (), 2, marks=SLOW),
        pytest.param("diloco", (), 2, marks=SLOW),
        pytest.param("easgd", (), 2, marks=SLOW),
        pytest.param("gossip", ("--checkpoint-every", "epoch"), 2, marks=SLOW),
    ],
)
def test_the_ranks_that_are_left_go_on_from_node_memory(tmp_path, rule, more, left):
    with start(tmp_path, "--rule", rule, *more) as job:
        said, errors = job.communicate(timeout=2 * HANG_S)
    assert job.returncode == 0, errors
    warning = "do not outlive each other: if one is lost, those that are left start again from node"
    assert errors.count(warning) == 1
    assert f"starting again from node memory, with {left} ranks" in errors
    found = re.search(r"resuming \S+ from node memory after step (\d+)", said + errors)
    assert found is not None, said
    assert int(found[1]) > 0
    assert (tmp_path / "run" / "checkpoints").exists() == bool("--checkpoint-every" in more)
    assert left_by(job) == []
    check_events(tmp_path)


@SLOW
def test_a_rank_that_hangs_is_killed_and_the_others_start_again(tmp_path):
    limits = ("--set", "stall_warning_s=2", "--set", "stall_timeout_s=6")
    with start(tmp_path, *limits, what=STOPS) as job:
        _, errors = job.communicate(timeout=2 * HANG_S)
    assert job.returncode == 0, errors
    assert "rank 1 is killed (stall_timeout_s), and the others go on" in errors
    assert "starting again from node memory, with 2 ranks" in errors
    assert left_by(job) == []
    check_events(tmp_path)


@SLOW
@pytest.mark.parametrize("how", [("--min-ranks", "2"), ("--rule", "easgd")], ids=["min", "easgd"])
def test_with_too_few_ranks_left_the_state_goes_to_the_disk(tmp_path, how):
    """So that the same job can go on when it is started anew. A rank alone has no centre."""
    with start(tmp_path, *how, ranks=2) as job:
        _, errors = job.communicate(timeout=2 * HANG_S)
    assert job.returncode == 75, errors
    assert "too few ranks are left to go on; the run is saved" in errors
    assert left_by(job) == []
    with start(tmp_path, "--resume", "auto", *how, ranks=2, what="pass") as job:
        _, errors = job.communicate(timeout=2 * HANG_S)
    assert job.returncode == 0, errors
    check_events(tmp_path)


@SLOW
def test_the_state_of_a_run_that_fails_goes_to_the_disk(tmp_path):
    with start(tmp_path, ranks=2, what=FAILS) as job:
        _, errors = job.communicate(timeout=2 * HANG_S)
    assert job.returncode == 1
    assert "out of luck" in errors
    assert "starting again" not in errors
    assert [*(tmp_path / "run" / "checkpoints").glob("step-*")]
    assert left_by(job) == []


@SLOW
def test_nothing_stays_in_node_memory_when_the_launcher_is_killed(tmp_path):
    with start(tmp_path, ranks=2, what=STAYS) as job:
        wait_for((tmp_path / "stays").exists, job)
        assert len(left_by(job)) == 2
        job.send_signal(signal.SIGKILL)
        job.wait(HANG_S)
        end = time.monotonic() + HANG_S
        while left_by(job) and time.monotonic() < end:
            time.sleep(0.02)
    assert left_by(job) == []
