"""The help of `paceline train` has every flag, and the page docs/settings.md has them too."""

import re
from pathlib import Path

import pytest

from paceline.config.flags import SETTINGS, help_of

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"
OF_THE_START = {"--ranks", "--hosts", "--hostfile", "--launcher", "--restarts"}
"""Not settings of the run, so not in the page's tables."""
OF_THE_COMMAND = {"--help", "--config", "--set", "--summary", "--tensorboard"}


@pytest.fixture
def options(command):
    """Each option in the help, with the text beside it."""
    done = command("train", "--help", COLUMNS="1000")
    assert (done.returncode, done.stderr) == (0, "")
    text = re.sub(r"\n {10,}", "  ", done.stdout)  # the text of long options is a line of its own
    return dict(re.findall(r"^  (?:-\w[ \w]*, )?(--[\w-]+).*?  +(\S.*)$", text, re.MULTILINE))


def documented():
    """Flag and default of each line of the page's tables that has a flag."""
    lines = re.findall(r"^\| `([^`]+)` \| `(--[\w-]+).*?` \| (.*?) \|", PAGE.read_text(), re.M)
    return {flag: default for _, flag, default in lines}


def test_every_option_is_in_the_help_and_on_the_page(options):
    assert set(options) == set(documented()) | OF_THE_START | OF_THE_COMMAND


def test_the_help_says_the_defaults_of_the_page(options):
    told = {flag: re.search(r"default:? ([\w.]+)", text) for flag, text in options.items()}
    plain = {
        flag: re.match(r"`?([\w.]+)`?( for sgd.*)?$", text) for flag, text in documented().items()
    }
    both = {flag: (told[flag][1], plain[flag][1]) for flag in plain if told[flag] and plain[flag]}
    assert len(both) >= 15
    for flag, (in_help, on_page) in both.items():
        assert in_help == on_page, flag


def test_the_help_is_in_groups_that_follow_the_settings(command):
    titles = re.findall(r"^(\S.*):$", command("train", "--help").stdout, re.MULTILINE)
    groups = dict.fromkeys(s.group.lower() for s in SETTINGS if s.flag is not None)
    assert titles == ["positional arguments", "options", *groups]


def test_choices_are_in_the_help_and_checked_with_all_other_settings(command, options):
    assert "(auto, bar, plain, off; default auto)" in options["--progress"]
    assert "bsp, average, diloco" in options["--rule"]
    done = command("train", "mnist", "--progress", "loud", "--precision", "8", "-n", "1")
    assert done.returncode == 2
    assert "progress is 'loud'" in done.stderr
    assert "precision is '8'" in done.stderr


def test_options_of_the_launcher_say_what_their_settings_say(options):
    shared = [setting for setting in SETTINGS if setting.flag and setting.flag.of_launcher]
    assert [setting.key for setting in shared] == ["threads"]
    for setting in shared:
        assert options[setting.flag.name] == help_of(setting)


def test_the_help_has_a_word_on_each_argument_and_the_exit_codes(command):
    text = " ".join(command("train", "--help").stdout.split())
    for word in ("MODEL", "TRAIN", "VAL"):
        assert re.search(rf" {word} \w", text), word
    assert "Exit code: 0 done, 2 wrong settings, 75 asked to stop" in text
