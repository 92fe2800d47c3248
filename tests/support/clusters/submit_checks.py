"""What `paceline submit` must do on every scheduler; the files beside it name the scheduler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from support.clusters.cluster import HANG_S, Cluster, wait_for

PACELINE = str(Path(sys.executable).parent / "paceline")
ODD = """a "b" it's $(touch pwned) ü"""
"""A name for a directory."""

DIGITS = (f"{Path(__file__).with_name('digits_model.py')}:build", "digits")
"""What `train` is to train, and on what: the ranks start quickly."""
LINE = ("train", *DIGITS, "--batch-size", "100", "--epochs", "1")
"""50 steps on two ranks."""
LONG = ("train", *DIGITS, "--batch-size", "100", "--epochs", "100000")
"""It does not end by itself while a test lasts."""


def has_steps(run_dir: Path) -> bool:
    """Whether the first rank has taken a step."""
    events = run_dir / "events" / "rank-0000.jsonl"
    return events.exists() and '"step"' in events.read_text(errors="replace")


class Submitting:
    """A user with a directory of his own, on a cluster with one of the schedulers."""

    def __init__(self, cluster: Cluster, scheduler: str, name: str) -> None:
        self.cluster, self.scheduler = cluster, scheduler
        self.place = cluster.new_folder(name)

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [PACELINE, "submit", self.scheduler, *words]
        return self.cluster.start(argv, cwd=self.place)

    def submit(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [PACELINE, "submit", self.scheduler, *words]
        return self.cluster.run(argv, cwd=self.place)

    def job(self, run_dir: str = "run") -> str:
        """The number of the job, from the name of its log."""
        logs = list((self.place / run_dir).glob("job-*.log"))
        return logs[0].name.split("-")[1].split(".")[0] if logs else ""

    def wait_for_steps(self, run_dir: str = "run") -> None:
        wait_for("the first step", lambda: has_steps(self.place / run_dir))

    def interrupt(self) -> None:
        """Ctrl-C for the command that waits, not for the door that it went through."""
        running = self.cluster.processes(0)
        (pid,) = (pid for pid, line in running.items() if f"submit {self.scheduler}" in line)
        os.kill(pid, signal.SIGINT)

    def check_nothing_is_left(self) -> None:
        """Of the job, on the nodes."""
        self.cluster.check_nothing_is_left(range(1, len(self.cluster.names)))


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Whatever happens inside, the command does not outlive the block."""
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def check_exit_code(user: Submitting) -> None:
    """A script that fails, in a directory with an odd name, gets its words and tells its code."""
    place = user.place / ODD
    place.mkdir()
    (place / "fails.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    argv = [PACELINE, "submit", user.scheduler, "--wait", "--", "run", "--", "fails.py", ODD]
    done = user.cluster.run(argv, cwd=place)
    assert done.returncode == 7, done.stdout + done.stderr
    assert str([ODD]) in done.stdout
    assert not list(user.cluster.folder.rglob("pwned"))


def check_array(user: Submitting) -> None:
    """A task for each seed, each in a directory of its own."""
    done = user.submit("--array-seeds", "4-5", "--wait", "--", *LINE, "--run-dir", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    for task, seed in ((1, 4), (2, 5)):
        config = yaml.safe_load((user.place / "run" / str(task) / "config.yaml").read_text())
        assert config["seed"] == seed
        assert (user.place / "run" / str(task) / "model.npz").exists()
        assert f"task {task} of 2 ended with code 0" in done.stderr


def check_ctrl_c_spares_the_job(user: Submitting, stop: str) -> str:
    """Ctrl-C ends the waiting alone; then `stop` ends the job and nothing of it is left."""
    words = ("--nodes", "2", "--time", "10m", "--env", "SLOW_S=0.1", "--wait")
    with ended(user.start(*words, "--", *LONG, "--run-dir", "run")) as process:
        user.wait_for_steps()
        user.interrupt()
        _, errors = process.communicate(timeout=HANG_S)
        assert process.returncode == 130, errors
        job = user.job()
        assert f"it continues. Stop it: {stop} {job}" in errors
        assert any(user.cluster.processes(node) for node in (1, 2))
        user.cluster.tell(stop, job)
        user.check_nothing_is_left()
    return job
