"""`paceline tune`: how many processes?"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import clean_environment

pytestmark = pytest.mark.timeout(300)

UNEVEN = """
import random, time, torch, paceline
world = paceline.init()
draw = random.Random(world.rank)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with paceline.keep_pace(model, optimizer):
    while True:
        words = draw.randint(1, 20)  # a sentence, and serial work on each of its words
        time.sleep(0.003 * words)
        optimizer.zero_grad()
        model(torch.ones(words, 8)).mean().backward()
        optimizer.step()
"""

LINE = """
import time
import numpy as np
from paceline import Trainer
from paceline.frameworks.numpy import NumpyReplica

def build():
    return NumpyReplica({"slope": np.zeros(1, np.float32)}, loss_and_gradients, 0.01)

def loss_and_gradients(arrays, batch):
    time.sleep(0.005)
    error = batch.inputs * arrays["slope"] - batch.targets
    return (error**2).mean(), {"slope": np.array([2 * (error * batch.inputs).mean()])}

x = np.linspace(0, 1, 1000, dtype=np.float32)
Trainer(build, (x, 3 * x), epochs=10**9, progress="off", run_dir="run").fit()
"""
"""Goes on until it is ended; starts sooner than with torch."""
NUMBERS = """
import os, time
import numpy as np
from paceline.frameworks.numpy import NumpyReplica

def build():
    return NumpyReplica({"weight": np.zeros((784, 10), np.float32)}, loss_and_gradients, 0.001)

def loss_and_gradients(arrays, batch):
    time.sleep(float(os.environ.get("SLOW_S", "0")))
    pixels = batch.inputs.reshape(len(batch.inputs), -1)
    error = pixels @ arrays["weight"] - np.eye(10, dtype=np.float32)[batch.targets]
    return (error**2).mean(), {"weight": pixels.T @ error / len(error)}
"""


@pytest.fixture
def script(tmp_path):
    def write(code):
        (tmp_path / "program.py").write_text(code)
        return "program.py"

    return write


@pytest.fixture
def tune(paceline, tmp_path):
    """The command with a folder of its own for temporary files, which must be empty at the end."""
    place = tmp_path / "temporary"
    place.mkdir()

    def run(*arguments, **environment):
        done = paceline("tune", *arguments, timeout_s=250, TMPDIR=str(place), **environment)
        assert [p.name for p in place.iterdir() if "tune" in p.name] == []
        return done

    return run


def rows(text):
    """Ranks, threads and rate of each line of the table."""
    found = re.findall(r"^ +(\d+) +(\d+) +\S+ +([\d,.]+) ", text, re.MULTILINE)
    return {(int(r), int(t)): float(rate.replace(",", "")) for r, t, rate in found}


def test_train_is_measured_and_the_command_it_names_runs(tune, paceline, script, tmp_path):
    files = ("--json", "tune.json", "--plot", "tune.svg")
    model = (f"{script(NUMBERS)}:build", "digits")
    # So slow that no trial comes to the end of an epoch, where batches are smaller.
    done = tune("--ranks", "1,2", "--seconds", "3", *files, "--", "train", *model, SLOW_S="0.05")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tune: trial") == 2
    assert set(rows(done.stdout)) <= {(1, 2), (1, 1), (2, 1)}
    assert len(rows(done.stdout)) == 2
    assert done.stdout.count("<- best") == 1
    assert not (tmp_path / "runs").exists()
    found = json.loads((tmp_path / "tune.json").read_text())
    assert [trial["estimate"]["unit"] for trial in found["trials"]] == ["samples"] * 2
    by_ranks = {trial["setting"]["ranks"]: trial["estimate"] for trial in found["trials"]}
    assert {ranks: one["batch"] for ranks, one in by_ranks.items()} == {1: 64, 2: 128}
    assert all(one["rank_bytes"] > 50e6 for one in by_ranks.values())
    assert by_ranks[1]["waiting"] == 0 < by_ranks[2]["waiting"] < 1
    assert (tmp_path / "tune.svg").read_bytes().startswith(b"<?xml")
    words = shlex.split(re.search(r"^use: (.*)$", done.stdout, re.MULTILINE)[1])
    assert words[:4] == ["paceline", "train", *model]
    used = paceline(*words[1:], "--epochs", "1", "--run-dir", "run", timeout_s=200)
    assert used.returncode == 0, used.stderr


def test_uneven_examples_are_quicker_on_more_ranks_than_cores(tune, script):
    done = tune("--ranks", "2,4", "--seconds", "4", "--", "run", "--", script(UNEVEN))
    assert done.returncode == 0, done.stderr
    found = {ranks: rate for (ranks, _), rate in rows(done.stdout).items()}
    assert found[4] > 1.2 * found[2]
    assert re.search(r"use: paceline run -n 4 --threads \d+ -- program.py", done.stdout)


def test_a_script_that_tells_no_steps_is_timed_to_its_end(tune, script):
    code = "import time, os\ntime.sleep(4 / int(os.environ['PACELINE_RANKS']))"
    done = tune("--ranks", "1,2", "--seconds", "1", "--", "run", "--", script(code))
    assert done.returncode == 0, done.stderr
    assert "runs/s" in done.stdout
    assert "the whole script was timed" in done.stdout
    assert len(rows(done.stdout)) == 2


def test_a_setting_that_fails_is_shown_and_the_others_go_on(tune, script):
    code = "import os\nif os.environ['PACELINE_RANKS'] == '2': raise RuntimeError('not with two')\n"
    done = tune("--ranks", "1,2", "--seconds", "1", "--", "run", "--", script(code))
    assert done.returncode == 0, done.stderr
    assert "failed: exit code 1: RuntimeError: not with two" in done.stdout
    assert "use: paceline run -n 1" in done.stdout


def test_if_all_fail_the_error_of_the_first_is_told(tune):
    done = tune("--seconds", "1", "--", "train", "mnist", "--epochs", "many")
    assert done.returncode == 2
    assert "argument --epochs" in done.stderr
    done = tune("--seconds", "1", "--", "train", "mnist", "--set", "ruler=bsp")
    assert done.returncode == 1
    assert "ConfigError: ruler is not a setting" in done.stderr
    assert "no setting could be measured" in done.stderr
    assert done.stderr.count("tune: trial") == 2, "wrong settings are wrong on any ranks"
    assert done.stdout == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_ends_the_trial_and_prints_what_is_known(tmp_path, script, number, code):
    place = tmp_path / "temporary"
    place.mkdir()
    command = [str(Path(sys.executable).parent / "paceline"), "tune", "--ranks", "2"]
    child = subprocess.Popen(
        [*command, "--seconds", "300", "--", "run", "--", script(LINE), "marked-by-the-test"],
        cwd=tmp_path,
        env=clean_environment(TMPDIR=str(place)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        await_steps(place)
        assert ranks_of(tmp_path), "the ranks are found by their folder"
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == code, err
    assert re.search(r"^ +2 +1 .*interrupted$", out, re.MULTILINE)
    assert [path.name for path in place.iterdir() if "tune" in path.name] == []
    assert ranks_of(tmp_path) == []


def await_steps(place, timeout_s=120):
    end = time.monotonic() + timeout_s
    while not any(path.stat().st_size for path in place.glob("paceline-tune-*/rank-*.jsonl")):
        assert time.monotonic() < end, "no rank has told of a step"
        time.sleep(0.1)


def ranks_of(folder):
    """Processes, but this one, that work in the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_what_cannot_be_tried_is_refused(tune):
    done = tune("--", "bench")
    assert done.returncode == 1
    assert "paceline tune -- train mnist" in done.stderr
    done = tune("--ranks", "0", "--", "train", "mnist")
    assert done.returncode == 2
    done = tune("--plot", "tune.txt", "--", "train", "mnist")
    assert "must end in one of" in done.stderr
