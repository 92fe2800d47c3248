"""Runs that are cut short and go on, as a user sees them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from paceline.training.checkpoint.store import Store

pytestmark = pytest.mark.timeout(120)

MODEL = """
import os, signal, time
import numpy as np
from paceline.frameworks.numpy import NumpyReplica

calls = 0


def build():
    return NumpyReplica({"w": np.zeros((784, 10), np.float32)}, loss, 0.05, 0.9)


def loss(arrays, batch):
    global calls
    calls += 1
    time.sleep(float(os.environ.get("SLOW_S", "0")))
    doomed = os.environ.get("DIE_AT", "0")
    if calls == int(doomed) and os.environ["PACELINE_RESTART"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    pixels = batch.inputs.reshape(len(batch.inputs), -1)
    scores = pixels @ arrays["w"]
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(chances))
    value = -np.log(chances[rows, batch.targets] + 1e-12).mean()
    chances[rows, batch.targets] -= 1
    return value, {"w": pixels.T @ chances / len(chances)}
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path


def start(place, *words, **env):
    command = [sys.executable, "-m", "paceline", "train", *words, "--progress", "off"]
    return subprocess.Popen(
        command, cwd=place, env={**os.environ, **env}, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def train(place, *words, code=0, **env):
    process = start(place, *words, **env)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    return out + err


def model(folder):
    with np.load(folder / "model.npz") as arrays:
        return arrays["w"].tobytes()


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.05)


NEW = ("mine.py:build", "digits", "--epochs", "2", "--batch-size", "100", "--threads", "1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The model of the run on two ranks that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "mine.py").write_text(MODEL)
    train(folder, *NEW, "-n", "2", "--run-dir", "whole")
    return model(folder / "whole")


@pytest.mark.parametrize(
    ("ranks", "number", "code"),
    [
        (1, signal.SIGTERM, 75),
        (1, signal.SIGINT, 130),
        (2, signal.SIGTERM, 75),
        (2, signal.SIGUSR1, 75),
        (2, signal.SIGUSR2, 75),
        (2, signal.SIGINT, 130),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_signal_saves_and_the_run_goes_on(place, whole, ranks, number, code):
    words = (*NEW, "-n", str(ranks), "--checkpoint-every", "3", "--run-dir", "run")
    process = start(place, *words, SLOW_S="0.02")
    checkpoints = place / "run" / "checkpoints"
    wait_for(lambda: any(checkpoints.glob("step-*")))
    process.send_signal(number)
    err = process.communicate(timeout=30)[1]
    assert process.returncode == code, err
    assert "and saved; go on with: paceline train --resume" in err
    assert "Traceback" not in err
    assert not (place / "run" / "model.npz").exists()
    train(place, "--resume", "run", "-n", str(ranks))
    if ranks == 2:
        assert model(place / "run") == whole


def test_a_model_that_was_given_in_python_is_asked_for(place):
    (place / "run").mkdir()
    (place / "run" / "config.yaml").write_text("model: <Sequential>\ndata: {train: digits}\n")
    process = start(place, "--resume", "run")
    err = process.communicate(timeout=30)[1]
    assert process.returncode == 2
    assert err.startswith("ConfigError: the model of run was given in Python (Sequential); name it")


def test_a_second_ctrl_c_ends_at_once(place):
    process = start(place, *NEW, "-n", "2", "--run-dir", "run", SLOW_S="20")
    wait_for(lambda: any((place / "run").glob("events/*")))
    time.sleep(1)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=15)
    assert process.returncode == 130
    assert time.monotonic() - began < 10


def test_a_time_limit_saves(place, whole):
    words = (*NEW, "-n", "2", "--run-dir", "run")
    said = train(place, *words, "--max-time", "1s", code=75, SLOW_S="0.05")
    assert "(max_time 1s) and saved" in said
    train(place, *words, "--resume", "auto")
    assert model(place / "run") == whole


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_launcher_starts_again_after_a_death(place, ranks):
    words = (*NEW, "-n", str(ranks))
    train(place, *words, "--run-dir", "plain")
    again = (*words, "--restarts", "1", "--checkpoint-every", "5")
    said = train(place, *again, DIE_AT="30")
    assert "restart 1 of 1" in said
    (run,) = (place / "runs").iterdir()
    assert model(run) == model(place / "plain")
    code = 137 if ranks > 1 else -9  # alone it is this process
    said = train(place, *words, "--run-dir", "dies", code=code, DIE_AT="30")
    assert "was killed by signal 9" in said or ranks == 1


def test_auto_finds_the_newest_run_that_is_not_done(place):
    words = (*NEW, "-n", "1", "--checkpoint-every", "5")
    train(place, *words)
    said = train(place, *words, "--max-time", "0.3s", code=75, SLOW_S="0.02")
    interrupted = max((place / "runs").iterdir(), key=lambda path: path.name)
    assert str(interrupted) in said
    train(place, *words, "--resume")
    assert len(list((place / "runs").iterdir())) == 2
    assert (interrupted / "model.npz").exists()
    train(place, *words, "--resume", "auto")  # all are done: a new one
    assert len(list((place / "runs").iterdir())) == 3


def test_as_many_are_kept_as_asked(place):
    words = (*NEW, "-n", "1", "--checkpoint-every", "20", "--keep-checkpoints", "4")
    train(place, *words, "--run-dir", "run")
    assert len(Store(place / "run" / "checkpoints").names()) == 4


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--resume", "nowhere"), "nowhere is not the directory of a run"),
        (("--checkpoint-every", "soon"), "checkpoint_every is 'soon', expected: epoch, a number"),
        (("--max-time", "5"), "max_time is '5', expected: a time as"),
        (("--check-replicas", "2", "--rule", "average"), "check_replicas compares replicas"),
        (("--keep-checkpoints", "0"), "keep_checkpoints is 0"),
    ],
)
def test_wrong_wishes_are_explained(place, words, complaint):
    assert complaint in train(place, *NEW, "-n", "1", *words, code=2)


def test_a_run_directory_that_cannot_be_written_is_named(place):
    (place / "file").write_text("")
    said = train(place, *NEW, "-n", "2", "--run-dir", "file/run", code=2)
    assert "run directory file/run cannot be written" in said
    assert Path(place / "file").read_text() == ""
