"""What rank 0 shows during the run: a live bar, plain lines, or nothing."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

from paceline.errors import ConfigError
from paceline.observe.history import EpochRecord
from paceline.observe.numbers import Course

MODES = ("auto", "bar", "plain", "off")
DRAW_EVERY_S = 0.1
# Open MPI gives ranks a pseudo-terminal, so isatty says yes even when mpirun writes into a file.
_LAUNCHER_MARKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_PROCID")


class Progress(Protocol):
    """Show how the run goes; `update` is called in every step and must cost next to nothing."""

    def begin(self, epochs: int, samples_per_epoch: int | None, description: str) -> None:
        """Announce the run; samples_per_epoch is None if it is unknown."""

    def update(self, epoch: int, samples: int, loss: float | None, samples_per_s: float) -> None:
        """Report the samples the world has consumed in `epoch` (counted from 1) so far."""

    def message(self, text: str) -> None:
        """Show a line of text without disturbing the display."""

    def epoch_end(self, record: EpochRecord) -> None:
        """Show one line for a finished epoch."""

    def close(self) -> None:
        """Leave the terminal as it was; a second call does nothing."""


class NoProgress:
    """Show nothing: for the other ranks, or progress=off."""

    def begin(self, epochs: int, samples_per_epoch: int | None, description: str) -> None:
        pass

    def update(self, epoch: int, samples: int, loss: float | None, samples_per_s: float) -> None:
        pass

    def message(self, text: str) -> None:
        pass

    def epoch_end(self, record: EpochRecord) -> None:
        pass

    def close(self) -> None:
        pass


class PlainProgress:
    """Write plain lines, for a log file or a job's output: no colour, no control characters."""

    def __init__(
        self,
        stream: TextIO,
        interval_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._clock = clock
        self._next_s = clock() + interval_s
        self._course = Course(epochs=0, samples_per_epoch=None)

    def begin(self, epochs: int, samples_per_epoch: int | None, description: str) -> None:
        self._course = Course(epochs, samples_per_epoch)
        self.message(description)
        self._next_s = self._clock() + self._interval_s

    def update(self, epoch: int, samples: int, loss: float | None, samples_per_s: float) -> None:
        now = self._clock()
        if now < self._next_s:
            return
        self._next_s = now + self._interval_s
        state = self._course.describe(epoch, samples, loss, samples_per_s)
        self.message(f"epoch {epoch}/{self._course.epochs}  {state}")

    def message(self, text: str) -> None:
        self._stream.write(_spell(text, self._stream.encoding) + "\n")
        self._stream.flush()

    def epoch_end(self, record: EpochRecord) -> None:
        self._course.learn_length(record)
        self.message(self._course.describe_epoch(record))
        self._next_s = self._clock() + self._interval_s

    def close(self) -> None:
        self._stream.flush()


class BarProgress:
    """Draw a live bar for the current epoch, and a line above it for each finished one."""

    def __init__(
        self,
        stream: TextIO,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        opened: TextIO | None = None,
    ) -> None:
        """`opened` is closed with the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        # Forced, since the caller knows more about the stream than isatty does.
        self._console = Console(
            file=stream,
            force_terminal=True,
            width=width,
            markup=False,
            emoji=False,
            highlight=False,
        )
        # No refresh thread: it would take time from the rank that the others wait for. Stderr is
        # drawn above the bar only if it goes to the terminal, too; otherwise it is left alone.
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}", markup=False),
            console=self._console,
            auto_refresh=False,
            transient=True,
            expand=True,
            redirect_stdout=stream is sys.stdout,
            redirect_stderr=stream is sys.stdout and sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("", total=None, state="", visible=False)
        self._clock = clock
        self._next_s = clock()
        self._open = False
        self._opened = opened
        self._course = Course(epochs=0, samples_per_epoch=None)

    def begin(self, epochs: int, samples_per_epoch: int | None, description: str) -> None:
        self._course = Course(epochs, samples_per_epoch)
        self.message(description)
        self._open = True
        self._bar.start()
        # rich hides the cursor; an aborted job could not restore it.
        self._console.show_cursor(True)

    def update(self, epoch: int, samples: int, loss: float | None, samples_per_s: float) -> None:
        now = self._clock()
        if now < self._next_s:
            return
        self._next_s = now + DRAW_EVERY_S
        self._bar.update(
            self._task,
            description=f"epoch {epoch}/{self._course.epochs}",
            completed=samples,
            total=self._course.samples_per_epoch,
            state=self._course.describe(epoch, samples, loss, samples_per_s),
            visible=True,
            refresh=True,
        )

    def message(self, text: str) -> None:
        self._console.print(_spell(text, self._console.encoding), soft_wrap=True)

    def epoch_end(self, record: EpochRecord) -> None:
        self._course.learn_length(record)
        self.message(self._course.describe_epoch(record))
        self._next_s = self._clock()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._bar.stop()
        if self._opened is not None:
            self._opened.close()


def make_progress(
    rank: int,
    mode: str = "auto",
    env: Mapping[str, str] = os.environ,
    stream: TextIO | None = None,
) -> Progress:
    """Choose the display: nothing except on rank 0, a bar on a terminal, else plain lines.

    Under a launcher a rank cannot see the terminal, so our launcher sets PACELINE_TTY to the
    terminal's device, or to 1 or 0; without it a launched rank writes plain lines. The bar
    goes straight to the device, since Open MPI's mpirun holds back a line until it is complete.
    """
    if mode not in MODES:
        raise ConfigError(f"progress is {mode!r}, expected one of {', '.join(MODES)}.")
    if rank != 0 or mode == "off":
        return NoProgress()
    stream = sys.stdout if stream is None else stream
    terminal = _find_terminal(env, stream)
    if mode == "bar" or (mode == "auto" and terminal is not None):
        opened = terminal if terminal is not None and terminal is not stream else None
        return BarProgress(terminal or stream, width=read_width(env), opened=opened)
    return PlainProgress(stream)


def has_terminal(env: Mapping[str, str], stream: TextIO) -> bool:
    """Whether what this rank writes to `stream` appears on a terminal."""
    setting = env.get("PACELINE_TTY", "")
    if setting:
        return setting != "0"
    return not any(mark in env for mark in _LAUNCHER_MARKS) and stream.isatty()


def read_width(env: Mapping[str, str]) -> int | None:
    """Return the terminal's width from COLUMNS, None when that is not set to a positive number."""
    columns = env.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else None


def _find_terminal(env: Mapping[str, str], stream: TextIO) -> TextIO | None:
    """Return what to draw a bar on, None without a terminal."""
    setting = env.get("PACELINE_TTY", "")
    if setting.startswith("/dev/"):
        return _open_terminal(setting)
    if setting not in ("", "0", "1"):
        raise ConfigError(
            f"PACELINE_TTY is {setting!r}, expected a device, 1 (a terminal) or 0 (none). "
            "Correct or unset it."
        )
    watched = has_terminal(env, stream) and (setting or env.get("TERM") != "dumb")
    return stream if watched else None


def _open_terminal(device: str) -> TextIO | None:
    """Return the terminal, None where it cannot be reached: the rank may be on another machine."""
    try:
        terminal = os.fdopen(os.open(device, os.O_WRONLY | os.O_NOCTTY), "w", encoding="utf-8")
    except OSError:
        return None
    if terminal.isatty():
        return terminal
    terminal.close()
    return None


def _spell(text: str, encoding: str | None) -> str:
    """Return `text` without control characters, and without any that cannot be encoded."""
    lines = ("".join(c if c.isprintable() else " " for c in line) for line in text.splitlines())
    encoding = encoding or "utf-8"
    return "\n".join(lines).encode(encoding, "replace").decode(encoding)
