"""Runs that are cut short and go on, as a user sees them.

A batch lasts until its rank has got a signal, or for ever: no test depends on how fast the machine
is. Wrong settings, and which run goes on, are in tests/unit/cli.
"""

import signal

import numpy as np
import pytest
from support import commands
from support.commands import PACELINE, started, wait_for

MODEL = '''
import os, signal, time
from pathlib import Path
import numpy as np
from paceline.frameworks.numpy import NumpyReplica

calls = 0


def build():
    return NumpyReplica({"w": np.zeros((784, 10), np.float32)}, loss, 0.05, 0.9)


def loss(arrays, batch):
    global calls
    calls += 1
    if calls == int(os.environ.get("STAY_AT", "0")):
        stay(int(os.environ["SIGNALS"]))
    time.sleep(float(os.environ.get("BATCH_S", "0")))
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


def stay(signals):
    """Until so many signals have come; a file says that it has begun."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    Path(f"stays-{os.getpid()}").touch()
    for _ in range(signals):
        os.read(reader, 1)
    signal.set_wakeup_fd(before)
'''
NEW = ("mine.py:build", "digits", "--epochs", "2", "--batch-size", "100", "--threads", "1")
QUIET = ("--progress", "off")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path


def train(place, *words, code=0, **env):
    done = commands.run("train", *words, *QUIET, cwd=place, **env)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def model(folder):
    with np.load(folder / "model.npz") as arrays:
        return arrays["w"].tobytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The model that a run on so many ranks gives which nothing interrupts."""
    known = {}

    def train_once(ranks):
        if ranks not in known:
            folder = tmp_path_factory.mktemp("whole")
            (folder / "mine.py").write_text(MODEL)
            train(folder, *NEW, "-n", ranks, "--run-dir", "whole")
            known[ranks] = model(folder / "whole")
        return known[ranks]

    return train_once


def stays(place, ranks):
    """Whether all of them are inside the batch that they stay at."""
    return lambda: len([*place.glob("stays-*")]) == ranks


CASES = {  # the exit code
    (2, signal.SIGTERM): 75,
    (1, signal.SIGTERM): 75,
    (1, signal.SIGINT): 130,
    (2, signal.SIGUSR1): 75,
    (2, signal.SIGUSR2): 75,
    (2, signal.SIGINT): 130,
}


@pytest.mark.parametrize(
    ("ranks", "number"),
    [
        (2, signal.SIGTERM),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [*CASES][1:]),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_signal_saves_and_the_run_goes_on(place, whole, ranks, number):
    words = ("train", *NEW, "-n", ranks, "--run-dir", "run", *QUIET)
    with started([PACELINE, *words], place, STAY_AT="20", SIGNALS="1") as process:
        wait_for(stays(place, ranks), process)
        process.send_signal(number)
        said = process.communicate(timeout=90)[1]
    assert process.returncode == CASES[ranks, number], said
    why = "Ctrl-C" if number == signal.SIGINT else number.name
    assert f"({why}) and saved; go on with: paceline train --resume" in said
    assert "Traceback" not in said
    assert not (place / "run" / "model.npz").exists()
    train(place, "--resume", "run", "-n", ranks)
    assert model(place / "run") == whole(ranks)


def test_a_second_ctrl_c_ends_at_once(place):
    words = ("train", *NEW, "-n", "2", "--run-dir", "run", *QUIET)
    with started([PACELINE, *words], place, STAY_AT="1", SIGNALS="9") as process:
        wait_for(stays(place, 2), process)
        process.send_signal(signal.SIGINT)
        assert "saving and stopping" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)  # though no rank comes out of its batch
    assert process.returncode == 130
    assert not [*(place / "run").glob("checkpoints/step-*")]


@pytest.mark.slow
def test_a_time_limit_saves(place, whole):
    words = (*NEW, "-n", "2", "--run-dir", "run")
    said = train(place, *words, "--max-time", "1s", code=75, BATCH_S="1.1")
    assert "(max_time 1s) and saved" in said
    train(place, *words, "--resume", "auto")
    assert model(place / "run") == whole(2)


@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_the_launcher_starts_again_after_a_death(place, whole, ranks):
    words = (*NEW, "-n", ranks, "--restarts", "1", "--checkpoint-every", "5")
    said = train(place, *words, DIE_AT="30")
    assert "was killed by signal 9" in said
    assert "restart 1 of 1" in said
    (run,) = (place / "runs").iterdir()
    assert model(run) == whole(ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "code"), [(2, 137), (1, -9)])  # alone it is this process
def test_a_death_without_restarts_is_the_end(place, ranks, code):
    said = train(place, *NEW, "-n", ranks, "--run-dir", "dies", code=code, DIE_AT="30")
    assert "was killed by signal 9" in said or ranks == 1
    assert not (place / "dies" / "model.npz").exists()
