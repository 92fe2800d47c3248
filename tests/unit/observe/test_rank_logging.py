"""setup_logging: every line names its rank, and rank 0 speaks for the world."""

import logging
import re
import sys

import pytest

from paceline.errors import ConfigError
from paceline.observe import setup_logging


@pytest.fixture(autouse=True)
def logger():
    """Give the "paceline" logger, and put it back as it was."""
    logger = logging.getLogger("paceline")
    before = logger.level, logger.propagate, list(logger.handlers)
    yield logger
    logger.setLevel(before[0])
    logger.propagate = before[1]
    logger.handlers[:] = before[2]


def say_all(logger: logging.Logger) -> None:
    for level in ("debug", "info", "warning", "error"):
        getattr(logger, level)("text of %s", level)


def levels(text: str) -> list[str]:
    return re.findall(r"\] (\w+):", text)


def test_a_line_has_time_rank_level_and_text(logger, capsys):
    setup_logging(3, 4)
    logging.getLogger("paceline.data.sampling.shards").warning("only %d samples", 7)
    captured = capsys.readouterr()
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[rank 3\] warning: only 7 samples\n", captured.err)
    assert captured.out == ""


@pytest.mark.parametrize(
    ("rank", "level", "expected"),
    [
        (0, "debug", ["debug", "info", "warning", "error"]),
        (0, "info", ["info", "warning", "error"]),
        (0, "error", ["error"]),
        (1, "debug", ["warning", "error"]),
        (1, "info", ["warning", "error"]),
        (1, "error", ["error"]),
    ],
)
def test_info_comes_from_rank_0_and_warnings_from_all(logger, capsys, rank, level, expected):
    setup_logging(rank, 2, level)
    say_all(logger)
    assert levels(capsys.readouterr().err) == expected


def test_a_further_call_replaces_the_settings(logger, capsys):
    setup_logging(0, 1)
    setup_logging(0, 1)
    setup_logging(1, 2, "error")
    say_all(logger)
    text = capsys.readouterr().err
    assert levels(text) == ["error"]
    assert "[rank 1]" in text


def test_handlers_of_the_user_stay(logger):
    own = logging.NullHandler()
    logger.addHandler(own)
    setup_logging(0, 1)
    setup_logging(0, 1)
    assert own in logger.handlers
    assert len([h for h in logger.handlers if h is not own]) == 1


def test_the_root_logger_is_left_alone_and_hears_nothing(logger, caplog):
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    setup_logging(0, 1)
    logger.error("not for the root")
    assert (root.level, root.handlers) == before
    assert caplog.records == []


def test_every_line_of_a_traceback_names_the_rank(logger, capsys):
    setup_logging(2, 4)
    try:
        raise RuntimeError("first\nsecond")
    except RuntimeError:
        logger.exception("failed")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 5
    assert all("[rank 2] error: " in line for line in lines)


def test_an_empty_message_is_a_line_too(logger, capsys):
    setup_logging(0, 1)
    logger.info("")
    assert capsys.readouterr().err.endswith("[rank 0] info: \n")


def test_lines_go_to_the_stderr_of_the_moment(logger, monkeypatch, tmp_path):
    setup_logging(0, 1)
    with (tmp_path / "err").open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        logger.info("here")
    assert (tmp_path / "err").read_text().endswith("info: here\n")


def test_an_unknown_level_is_refused_with_the_valid_ones():
    with pytest.raises(ConfigError, match="'loud', expected one of debug, info, warning, error"):
        setup_logging(0, 1, "loud")


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank, size):
    with pytest.raises(ValueError, match=f"rank {rank} in a world of {size}"):
        setup_logging(rank, size)
