"""The user's command, as it is read, tried and shown."""

import argparse
import sys

import pytest

from paceline.cli import tune
from paceline.cli.inner_command import parse_inner
from paceline.cli.train_settings import read_settings
from paceline.errors import LaunchError
from paceline.tools.tune.command import TrialCommand
from paceline.tools.tune.plan import RankSetting

NOTHING = dict.fromkeys(("hosts", "hostfile", "launcher"))


def read(*words, **passed_on):
    return tune.read_command(words, NOTHING | passed_on)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("train mnist --lr 0.1", "paceline train mnist --lr 0.1 -n 4 --threads 2"),
        ("run script.py --flag x", "paceline run -n 4 --threads 2 -- script.py --flag x"),
        ("run -- script.py", "paceline run -n 4 --threads 2 -- script.py"),
        ("run -- script.py -n 3", "paceline run -n 4 --threads 2 -- script.py -n 3"),
        ("run --restarts 2 -- s.py", "paceline run --restarts 2 -n 4 --threads 2 -- s.py"),
        ("run -- -m package x", "paceline run -n 4 --threads 2 -- -m package x"),
    ],
)
def test_the_command_to_use_is_the_users_with_ranks_and_threads(words, shown):
    assert read("--", *words.split()).shown(RankSetting(4, 2)) == shown
    assert read(*words.split()).shown(RankSetting(4, 2)) == shown


def test_words_with_spaces_are_quoted():
    shown = read("run", "--", "my script.py", "$(x)").shown(RankSetting(1))
    assert shown == "paceline run -n 1 --threads 1 -- 'my script.py' '$(x)'"


def test_hosts_are_passed_on():
    command = read("train", "mnist", hosts="a:2,b:2")
    assert command.shown(RankSetting(2)) == "paceline train --hosts a:2,b:2 mnist -n 2 --threads 1"
    assert not command.is_alone(RankSetting(1))
    assert read("train", "mnist").is_alone(RankSetting(1))
    assert not read("train", "mnist").is_alone(RankSetting(2))


def test_a_trial_of_train_trains_on_without_saving(tmp_path):
    given = ["mnist", "--set", "run_dir=mine", "--resume", "auto", "--checkpoint-every", "1"]
    argv = TrialCommand("train", tuple(given)).of_trial(RankSetting(2), tmp_path)
    assert argv[:4] == [sys.executable, "-m", "paceline", "train"]
    args = parse_inner(argv[3:])
    assert (args.ranks, args.threads, args.restarts) == (2, 1, 0)
    config = read_settings(args)
    assert config.run_dir == str(tmp_path / "run")
    assert (config.resume, config.checkpoint_every, config.max_time) == (None, None, None)
    assert config.epochs == config.validate_every == 100_000
    assert config.progress == "off"


def test_a_trial_of_run_leaves_the_scripts_arguments_alone(tmp_path):
    argv = read("run", "--restarts", "3", "--", "s.py", "--epochs", "2").of_trial(
        RankSetting(2), tmp_path
    )
    head = ["run", "--restarts", "3", "-n", "2", "--threads", "1", "--restarts", "0"]
    assert argv[3:] == [*head, "--", "s.py", "--epochs", "2"]


@pytest.mark.parametrize("words", [[], ["--"], ["bench"], ["script.py"]])
def test_other_commands_are_refused(words):
    with pytest.raises(LaunchError, match="tune needs a command to try, found"):
        read(*words)


@pytest.mark.parametrize(
    "words",
    [["train", "mnist", "-n", "2"], ["run", "-n", "2", "s.py"], ["train", "m", "--threads", "1"]],
)
def test_ranks_behind_the_dashes_are_refused(words):
    with pytest.raises(LaunchError, match="name those to try before it"):
        read(*words)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(tune._numbers, "1,,2"), (tune._numbers, "0"), (tune._numbers, "a"), (tune._seconds, "0")],
)
def test_numbers_that_are_none_are_refused(kind, text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a"):
        kind(text)


def test_numbers_are_read_in_order_and_once():
    assert tune._numbers("4, 1,4") == [1, 4]
