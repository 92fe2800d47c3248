"""make_progress chooses the right display, and each display shows what it should."""

import io
import os
import re
import select
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.costs import cost_ratio

from paceline.errors import ConfigError
from paceline.observe import BarProgress, EpochRecord, NoProgress, PlainProgress, make_progress
from paceline.observe.progress import has_terminal, read_width

EPOCH_LINE = "epoch 1/2  train loss 0.2500  val loss 0.1250  val accuracy 97.00 %"


class Terminal(io.StringIO):
    """A stream that says it is a terminal, as the pseudo-terminal of Open MPI does."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def record(epoch: int = 1, samples: int = 1000) -> EpochRecord:
    return EpochRecord(epoch, samples, 2.5, 0.25, 0.125, 0.97, 0.01, 400.0)


@pytest.mark.parametrize(
    ("env", "stream", "expected"),
    [
        ({}, Terminal(), BarProgress),
        ({}, io.StringIO(), PlainProgress),
        ({"TERM": "dumb"}, Terminal(), PlainProgress),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, Terminal(), PlainProgress),
        ({"PMI_SIZE": "2"}, Terminal(), PlainProgress),
        ({"SLURM_PROCID": "0"}, Terminal(), PlainProgress),
        ({"PACELINE_TTY": "1", "OMPI_COMM_WORLD_SIZE": "2"}, io.StringIO(), BarProgress),
        ({"PACELINE_TTY": "0"}, Terminal(), PlainProgress),
        ({"PACELINE_TTY": ""}, Terminal(), BarProgress),
    ],
)
def test_auto_follows_what_is_known_of_the_terminal(env, stream, expected):
    assert type(make_progress(0, env=env, stream=stream)) is expected


@pytest.mark.parametrize(
    ("mode", "expected"), [("bar", BarProgress), ("plain", PlainProgress), ("off", NoProgress)]
)
def test_a_mode_that_is_asked_for_wins(mode, expected):
    for stream in (Terminal(), io.StringIO()):
        assert type(make_progress(0, mode, {"PACELINE_TTY": "0"}, stream)) is expected


@pytest.mark.parametrize("mode", ["auto", "bar", "plain", "off"])
def test_other_ranks_show_nothing(mode):
    stream = Terminal()
    progress = make_progress(3, mode, {"PACELINE_TTY": "1"}, stream)
    progress.begin(2, 1000, "mnist")
    progress.update(1, 500, 0.5, 400.0)
    progress.message("hello")
    progress.epoch_end(record())
    progress.close()
    assert stream.getvalue() == ""


def test_an_unknown_mode_is_refused_with_the_valid_ones():
    with pytest.raises(ConfigError, match="'loud', expected one of auto, bar, plain, off"):
        make_progress(1, "loud")


def test_a_wrong_paceline_tty_is_refused():
    with pytest.raises(ConfigError, match="PACELINE_TTY is 'yes', expected a device, 1"):
        make_progress(0, env={"PACELINE_TTY": "yes"}, stream=io.StringIO())


def test_the_bar_goes_straight_to_the_device_that_the_launcher_named():
    leader, follower = os.openpty()
    try:
        stream = io.StringIO()
        env = {"PACELINE_TTY": os.ttyname(follower), "COLUMNS": "90", "OMPI_COMM_WORLD_SIZE": "2"}
        progress = make_progress(0, "auto", env, stream)
        progress.begin(2, 100, "what is trained")
        progress.update(1, 50, 0.5, 10.0)
        progress.close()
        shown = b""  # a terminal passes on what is written to it in its own time
        while b"50/100" not in shown and select.select([leader], [], [], 5)[0]:
            shown += os.read(leader, 10_000)
        assert b"what is trained" in shown
        assert b"50/100" in shown
        assert stream.getvalue() == ""
    finally:
        os.close(leader)
        os.close(follower)


@pytest.mark.parametrize("device", ["/dev/pts/no-such", "/dev/null"])
def test_a_device_that_is_no_terminal_here_means_plain_lines(device):
    stream = io.StringIO()
    assert type(make_progress(0, "auto", {"PACELINE_TTY": device}, stream)) is PlainProgress


@pytest.mark.parametrize("columns", [60, 100])
def test_the_bar_is_as_wide_as_columns_says(columns):
    stream = io.StringIO()
    progress = make_progress(0, "bar", {"COLUMNS": str(columns)}, stream)
    progress.begin(2, 10_000_000, "mnist")
    progress.update(1, 5_000_000, 0.5, 400_000.0)
    line = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", stream.getvalue()).split("\n")[-1]
    assert len(line) == columns
    progress.close()


@pytest.mark.parametrize("columns", ["", "0", "-5", "wide"])
def test_a_width_that_is_no_width_is_not_used(columns):
    assert read_width({"COLUMNS": columns}) is None


def test_plain_lines_come_at_begin_each_interval_and_each_epoch():
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(stream, interval_s=10.0, clock=clock)
    progress.begin(2, 1000, "mnist on 2 ranks")
    for step in range(25):
        clock.now = 50.0 + step
        progress.update(1, 40 * (step + 1), 0.5, 40.0)
    progress.epoch_end(record())
    clock.now += 9.5
    progress.update(2, 10, 0.4, 40.0)
    progress.message("saved\ncheckpoint")
    progress.close()
    assert stream.getvalue().splitlines() == [
        "mnist on 2 ranks",
        "epoch 1/2  440/1,000  loss 0.5000  40 samples/s  0:00:39 left",
        "epoch 1/2  840/1,000  loss 0.5000  40 samples/s  0:00:29 left",
        f"{EPOCH_LINE}  400 samples/s  2.5 s",
        "saved",
        "checkpoint",
    ]


@given(st.text())
def test_plain_lines_hold_no_control_characters(text):
    stream = io.StringIO()
    progress = PlainProgress(stream)
    progress.begin(1, None, text)
    progress.message(f"\x1b[31m{text}\r\x07")
    lines = stream.getvalue().split("\n")
    assert all(line.isprintable() for line in lines)
    assert lines[-1] == ""


@pytest.mark.parametrize("mode", ["plain", "bar"])
def test_a_stream_that_cannot_spell_a_name_still_gets_its_line(mode):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    progress = make_progress(0, mode, {}, stream)
    progress.begin(1, 1000, "caf\u00e9")
    progress.update(1, 500, 0.5, 400.0)
    progress.close()
    stream.flush()
    assert raw.getvalue().startswith(b"caf?\n")


@pytest.mark.parametrize("kind", [PlainProgress, BarProgress])
def test_the_length_of_a_generator_is_learnt_from_its_first_epoch(kind):
    stream, clock = io.StringIO(), Clock()
    progress = kind(stream, clock=clock)
    for epoch, text in [(1, "500  loss"), (2, "500/1,000  loss")]:
        if epoch == 1:
            progress.begin(2, None, "stream")
        clock.now += 60
        progress.update(epoch, 500, 0.5, 100.0)
        assert text in stream.getvalue()
        progress.epoch_end(record(epoch))
    progress.close()


def test_the_bar_shows_epoch_samples_loss_pace_and_time_left():
    stream = io.StringIO()
    progress = BarProgress(stream, width=100)
    progress.begin(2, 1000, "mnist [bold]on 2 ranks")
    progress.update(1, 500, 0.5, 100.0)
    text = stream.getvalue()
    assert text.startswith("mnist [bold]on 2 ranks\n")
    assert "epoch 1/2 " in text
    assert "\u2501" in text
    assert "500/1,000  loss 0.5000  100 samples/s  0:00:15 left" in text
    progress.close()


def test_finished_epochs_and_messages_stand_above_the_bar():
    stream = io.StringIO()
    progress = BarProgress(stream, width=100)
    progress.begin(2, 1000, "mnist")
    progress.update(1, 1000, 0.5, 100.0)
    progress.message("saved [checkpoint]")
    progress.epoch_end(record())
    # "Back to the start and erase", then the line, then the bar again.
    for line in ("saved [checkpoint]", f"{EPOCH_LINE}  400 samples/s  2.5 s"):
        assert f"\r\x1b[2K{line}\nepoch 1/2 " in stream.getvalue()
    progress.close()
    progress.message("after")
    assert stream.getvalue().endswith("\x1b[2Kafter\n")


def test_the_bar_is_drawn_at_most_ten_times_a_second():
    stream, clock = io.StringIO(), Clock()
    progress = BarProgress(stream, width=100, clock=clock)
    progress.begin(1, 1000, "mnist")
    drawn = []
    for step in range(100):
        clock.now = 50.0 + step / 64
        before = len(stream.getvalue())
        progress.update(1, step, 0.5, 64.0)
        if len(stream.getvalue()) > before:
            drawn.append(step)
    # 0.1 s is 6.4 of these steps: the first draws at once, then every seventh.
    assert drawn == list(range(0, 100, 7))
    progress.close()


def test_the_cursor_is_never_left_hidden():
    stream = io.StringIO()
    progress = BarProgress(stream, width=100)
    progress.begin(1, 1000, "mnist")
    progress.update(1, 500, 0.5, 100.0)
    # As after an abort, which closes nothing.
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l")
    progress.close()


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_closing_twice_writes_once(monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    stream = io.StringIO()
    progress = BarProgress(stream, width=100)
    progress.close()
    assert stream.getvalue() == ""
    progress.begin(1, 1000, "mnist")
    progress.close()
    once = stream.getvalue()
    progress.close()
    assert stream.getvalue() == once


@pytest.mark.parametrize("mode", ["bar", "plain", "off"])
def test_an_update_costs_a_few_looks_at_the_clock(mode):
    progress = make_progress(0, mode, {"COLUMNS": "100"}, io.StringIO())
    progress.begin(1, 1000, "mnist")
    ratio = cost_ratio(lambda: progress.update(1, 500, 0.5, 100.0), perf_counter)
    progress.close()
    assert ratio < 12


@pytest.mark.parametrize(
    ("env", "stream", "watched"),
    [
        ({}, Terminal(), True),
        ({}, io.StringIO(), False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, Terminal(), False),
        ({"OMPI_COMM_WORLD_SIZE": "2", "PACELINE_TTY": "/dev/pts/1"}, io.StringIO(), True),
        ({"PACELINE_TTY": "0"}, Terminal(), False),
    ],
)
def test_who_watches_is_known_from_the_launcher(env, stream, watched):
    assert has_terminal(env, stream) == watched
