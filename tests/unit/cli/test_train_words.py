"""`paceline train`: which words it takes, and what it says of wrong ones."""

import json
import re

import pytest
import yaml
from support.projects import BAD_DATA, WRONG_SETTINGS, write_project


@pytest.fixture
def project(tmp_path):
    return write_project(tmp_path)


@pytest.mark.parametrize("case", WRONG_SETTINGS)
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_wrong_settings_are_one_line_and_no_rank_starts(command, project, case, ranks):
    words, message = WRONG_SETTINGS[case]
    done = command("train", *words, "-n", ranks)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("ConfigError: ")
    assert message in line


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_models_and_data_are_one_line(command, project, case):
    words, message = BAD_DATA[case]
    done = command("train", *words, "-n", "1", "--epochs", "1")
    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert re.search(message, line)
    assert re.match(r"(Config|Data|Training|Framework|\w+)Error: ", line)


def test_what_the_users_own_model_raises_begins_with_their_own_line(command, project):
    done = command("train", "mine.py:clumsy", "train.npz", "-n", "1")
    assert done.returncode == 1
    first, *trace = done.stderr.splitlines()
    assert re.fullmatch(r"mine.py, line \d+, in clumsy, raised KeyError:", first)
    assert trace[0] == "Traceback (most recent call last):"
    assert "paceline" not in "".join(trace).replace(str(project), ""), "how we got there"


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
def test_wrong_wishes_are_explained(command, project, words, complaint):
    done = command("train", "mine.py:build", "train.npz", "-n", "1", *words)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_a_model_that_was_given_in_python_is_asked_for(command, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("model: <Sequential>\ndata: {train: digits}\n")
    done = command("train", "--resume", "run")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "ConfigError: the model of run was given in Python (Sequential); name it"
    )


@pytest.mark.parametrize("place", ["train.npz/x", "."])
def test_a_summary_that_cannot_be_written_is_found_before_training(command, project, place):
    done = command("train", "mine.py:build", "train.npz", "-n", "1", "--summary", place)
    assert done.returncode == 2
    assert f"{place} cannot be written" in done.stderr
    assert not (project / "runs").exists()


@pytest.mark.parametrize("columns", ["", "wide"])
def test_a_strange_width_of_the_terminal_does_no_harm(command, project, columns):
    words = ("mine.py:build", "train.npz", "val.npz", "-n", "1", "--epochs", "1")
    done = command("train", *words, COLUMNS=columns)
    assert done.returncode == 0, done.stderr
    assert "epoch | train loss | val loss | val accuracy" in done.stdout


def test_a_run_file_is_a_run_and_flags_win(command, project):
    (project / "run.yaml").write_text(
        "model: network.py:build\ndata: {train: train.npz, validation: val.npz, batch_size: 30}\n"
        "epochs: 9\noptimizer: {name: sgd, lr: 0.5}\nrun_dir: out\n"
    )
    done = command("train", "run.yaml", "--epochs", "1", "-n", "1", "--lr", "0.25")
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((project / "out" / "config.yaml").read_text())
    assert (config["epochs"], config["data"]["batch_size"]) == (1, 30)
    assert config["optimizer"] == {"lr": 0.25, "momentum": 0.9, "name": "sgd"}


def test_the_config_of_a_run_can_be_run_again(command, project):
    first = command("train", "mine.py:build", "train.npz", "-n", "1", "--run-dir", "a")
    again = command("train", "a/config.yaml", "-n", "1", "--run-dir", "b")
    assert again.returncode == 0, first.stderr + again.stderr
    outcomes = [json.loads((project / name / "summary.json").read_text()) for name in "ab"]
    assert outcomes[0]["train_loss"] == outcomes[1]["train_loss"]


def test_a_function_gives_model_and_dataset(command, project):
    words = ("network.py:build", "network.py:samples", "network.py:samples")
    done = command("train", *words, "-n", "1", "--epochs", "1", "--summary", "told.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((project / "told.json").read_text())["samples"] == 200
