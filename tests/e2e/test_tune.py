"""`paceline tune`: how many processes?

What is refused before a trial is in tests/unit/cli.
"""

import json
import os
import re
import shlex
import signal
from pathlib import Path

import pytest
from support.commands import PACELINE, started, wait_for

from paceline.cluster.cores import available_cores

pytestmark = pytest.mark.timeout(300)

UNEVEN = """
import time, torch, paceline
world = paceline.init()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
with paceline.keep_pace(model, optimizer):
    while True:  # in every step one rank has a long sentence, and serial work on each of its words
        words = 10 if step % world.size == world.rank else 1
        time.sleep(0.02 * words)
        optimizer.zero_grad()
        model(torch.ones(4, 8)).mean().backward()
        optimizer.step()
        step += 1
"""
"""So a step takes 0.2 s on any number of ranks, and twice as many have twice the rate."""

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


def test_train_is_measured_and_a_command_is_named(tune, script, tmp_path):
    files = ("--json", "tune.json", "--plot", "tune.svg")
    model = (f"{script(NUMBERS)}:build", "digits")
    # So slow that no trial comes to the end of an epoch, where batches are smaller.
    done = tune("--ranks", "1,2", "--seconds", "1", *files, "--", "train", *model, SLOW_S="0.1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tune: trial") == 2
    cores = available_cores()
    assert set(rows(done.stdout)) == {(1, cores), (2, max(1, cores // 2))}
    assert done.stdout.count("<- best") == 1
    assert not (tmp_path / "runs").exists()
    found = json.loads((tmp_path / "tune.json").read_text())
    assert [trial["estimate"]["unit"] for trial in found["trials"]] == ["samples"] * 2
    by_ranks = {trial["setting"]["ranks"]: trial["estimate"] for trial in found["trials"]}
    assert {ranks: one["batch"] for ranks, one in by_ranks.items()} == {1: 64, 2: 128}
    assert all(one["rank_bytes"] > 20e6 for one in by_ranks.values())
    assert by_ranks[1]["waiting"] == 0 < by_ranks[2]["waiting"] < 1
    assert (tmp_path / "tune.svg").read_bytes().startswith(b"<?xml")
    words = shlex.split(re.search(r"^use: (.*)$", done.stdout, re.MULTILINE)[1])
    assert words[:4] == ["paceline", "train", *model]


@pytest.mark.slow
def test_the_command_it_names_runs(tune, paceline, script):
    model = (f"{script(NUMBERS)}:build", "digits")
    done = tune("--ranks", "1,2", "--seconds", "1", "--", "train", *model)
    words = shlex.split(re.search(r"^use: (.*)$", done.stdout, re.MULTILINE)[1])
    used = paceline(*words[1:], "--epochs", "1", "--run-dir", "run", timeout_s=200)
    assert used.returncode == 0, used.stderr


@pytest.mark.slow
def test_where_examples_are_uneven_more_ranks_than_cores_are_named(tune, script):
    done = tune("--ranks", "2,4", "--seconds", "6", "--all", "--", "run", "--", script(UNEVEN))
    assert done.returncode == 0, done.stderr
    found = {ranks: rate for (ranks, _), rate in rows(done.stdout).items()}
    assert found[4] > 1.2 * found[2], "it would be twice as much on an idle machine"
    assert re.search(r"use: paceline run -n 4 --threads \d+ -- program.py", done.stdout)


@pytest.mark.slow
def test_a_script_that_tells_no_steps_is_timed_to_its_end(tune, script):
    code = "import time, os\ntime.sleep(4 / int(os.environ['PACELINE_RANKS']))"
    done = tune("--ranks", "1,2", "--seconds", "1", "--", "run", "--", script(code))
    assert done.returncode == 0, done.stderr
    assert "runs/s" in done.stdout
    assert "the whole script was timed" in done.stdout
    assert len(rows(done.stdout)) == 2


@pytest.mark.slow
def test_a_setting_that_fails_is_shown_and_the_others_go_on(tune, script):
    code = "import os\nif os.environ['PACELINE_RANKS'] == '2': raise RuntimeError('not with two')\n"
    done = tune("--ranks", "1,2", "--seconds", "1", "--", "run", "--", script(code))
    assert done.returncode == 0, done.stderr
    assert "failed: exit code 1: RuntimeError: not with two" in done.stdout
    assert "use: paceline run -n 1" in done.stdout


@pytest.mark.slow
def test_if_all_fail_the_error_of_the_first_is_told(tune):
    done = tune("--seconds", "1", "--", "train", "mnist", "--set", "ruler=bsp")
    assert done.returncode == 1
    assert "ConfigError: ruler is not a setting" in done.stderr
    assert "no setting could be measured" in done.stderr
    assert done.stderr.count("tune: trial") == 2, "wrong settings are wrong on any ranks"
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_ends_the_trial_and_prints_what_is_known(tmp_path, script, number, code):
    place = tmp_path / "temporary"
    place.mkdir()
    words = ("tune", "--ranks", "2", "--seconds", "300", "--", "run", "--", script(LINE))
    with started([PACELINE, *words], tmp_path, TMPDIR=str(place)) as job:
        wait_for(lambda: has_told_of_a_step(place), job)
        assert ranks_of(tmp_path), "the ranks are found by their folder"
        job.send_signal(number)
        out, err = job.communicate(timeout=90)
    assert job.returncode == code, err
    assert re.search(r"^ +2 +\d+ .*interrupted$", out, re.MULTILINE)
    assert [path.name for path in place.iterdir() if "tune" in path.name] == []
    assert ranks_of(tmp_path) == []


def has_told_of_a_step(place):
    return any(path.stat().st_size for path in place.glob("paceline-tune-*/rank-*.jsonl"))


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
