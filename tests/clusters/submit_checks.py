"""What `paceline submit` must do on every scheduler; the files beside it name the scheduler."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from clusters.cluster import Cluster, wait_for

PACELINE = str(Path(sys.executable).parent / "paceline")
ODD = """a "b" it's $(touch pwned) ü"""
"""A name for a directory."""

MODEL = """
import os, time
import numpy as np
from paceline.frameworks.numpy import NumpyReplica


# Only the first run is slow, not one that goes on.
SLOW_S = 0.0 if os.path.isdir("run/checkpoints") else float(os.environ.get("SLOW_S", "0"))


def build():
    return NumpyReplica({"w": np.zeros((784, 10), np.float32)}, loss, 0.05, 0.9)


def loss(arrays, batch):
    time.sleep(SLOW_S)
    pixels = batch.inputs.reshape(len(batch.inputs), -1)
    scores = pixels @ arrays["w"]
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(chances))
    value = -np.log(chances[rows, batch.targets] + 1e-12).mean()
    chances[rows, batch.targets] -= 1
    return value, {"w": pixels.T @ chances / len(chances)}
"""
LINE = ("train", "line.py:build", "digits", "--batch-size", "100", "--epochs", "1")
"""A quick training, 50 steps on two ranks; $SLOW_S makes each of them longer."""


class Submitting:
    """A user with a directory of his own, on a cluster with one of the schedulers."""

    def __init__(self, cluster: Cluster, scheduler: str, name: str) -> None:
        self.cluster, self.scheduler = cluster, scheduler
        self.place = cluster.folder / name
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        (self.place / "line.py").write_text(MODEL)

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [PACELINE, "submit", self.scheduler, *words]
        return self.cluster.start(argv, cwd=self.place)

    def submit(self, *words: str, timeout_s: float = 110) -> subprocess.CompletedProcess[str]:
        argv = [PACELINE, "submit", self.scheduler, *words]
        return self.cluster.run(argv, timeout_s=timeout_s, cwd=self.place)

    def job(self, run_dir: str = "run") -> str:
        """The number of the job, from the name of its log."""
        logs = list((self.place / run_dir).glob("job-*.log"))
        return logs[0].name.split("-")[1].split(".")[0] if logs else ""

    def wait_for_steps(self, run_dir: str = "run") -> None:
        events = self.place / run_dir / "events" / "rank-0000.jsonl"
        wait_for(
            "the first step",
            lambda: events.exists() and '"step"' in events.read_text(errors="replace"),
            timeout_s=60,
        )

    def interrupt(self) -> None:
        """Ctrl-C for the command that waits, not for the door that it went through."""
        running = self.cluster.processes(0)
        (pid,) = (pid for pid, line in running.items() if f"submit {self.scheduler}" in line)
        os.kill(pid, signal.SIGINT)

    def check_nothing_is_left(self) -> None:
        nodes = range(1, len(self.cluster.names))
        wait_for(
            "the processes of the job to end",
            lambda: not any(self.cluster.processes(node) for node in nodes),
            timeout_s=40,
        )
        for node in nodes:
            left = [name for name in self.cluster.shared_memory(node) if "paceline" in name]
            assert left == []


def check_training_over_nodes(user: Submitting) -> None:
    """The digits, on two nodes, from the login node to the model."""
    done = user.submit(
        *("--nodes", "2", "--time", "10m", "--wait"),
        *("--", "train", "mnist", "--epochs", "1", "--run-dir", "run"),
        timeout_s=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks on" in done.stdout
    summary = json.loads((user.place / "run" / "summary.json").read_text())
    assert summary["ranks"] == 2
    assert summary["val_accuracy"] > 0.9
    assert (user.place / "run" / "job.sh").exists()


def check_exit_code(user: Submitting) -> None:
    """A script that fails, in a directory with an odd name, gets its words and tells its code."""
    place = user.place / ODD
    place.mkdir()
    (place / "fails.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    argv = [PACELINE, "submit", user.scheduler, "--wait", "--", "run", "--", "fails.py", ODD]
    done = user.cluster.run(argv, cwd=place, timeout_s=110)
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
    process = user.start(
        *("--nodes", "2", "--time", "10m", "--env", "SLOW_S=0.3", "--wait"),
        *("--", *LINE, "--epochs", "20", "--run-dir", "run"),
    )
    try:
        user.wait_for_steps()
        user.interrupt()
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 130, errors
        job = user.job()
        assert f"it goes on. Stop it: {stop} {job}" in errors
        assert any(user.cluster.processes(node) for node in (1, 2))
        user.cluster.tell(stop, job)
        user.check_nothing_is_left()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return job
