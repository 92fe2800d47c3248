"""Requests to save and end: by a signal, by max_time, or by the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

from paceline.core.quantities import Period
from paceline.runtime.job_dir import ASKED_BY, CAN_SAVE, notify_launcher, read_note

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
_SPOKEN = {"SIGINT": "Ctrl-C"}
REQUEUE = 75
"""The exit code that asks a scheduler to start the job again (EX_TEMPFAIL of sysexits.h)."""


class StopRequests:
    """Why this rank shall save and end, and with which exit code."""

    def __init__(self) -> None:
        self._ends_at: float | None = None
        self._max_time: str | None = None
        self._signal: int | None = None
        self._asked: str | None = None

    def limit(self, max_time: str | None) -> None:
        """Save and end when this time has passed."""
        seconds = Period.parse(max_time).seconds if max_time is not None else None
        self._ends_at = monotonic() + seconds if seconds is not None else None
        self._max_time = max_time

    def ask(self, reason: str) -> None:
        """Save and end, for this reason."""
        self._asked = reason

    @property
    def reason(self) -> str | None:
        """In a few words; None while nobody asks."""
        if self._signal is not None:
            name = signal.Signals(self._signal).name
            asked = read_note(ASKED_BY) if self._signal == signal.SIGUSR1 else None
            return _SPOKEN.get(asked or name, asked or name)
        if self._asked is not None:
            return self._asked
        if self._ends_at is not None and monotonic() >= self._ends_at:
            return f"max_time {self._max_time}"
        return None

    @property
    def code(self) -> int:
        """The exit code."""
        return 130 if self._signal == signal.SIGINT else REQUEUE

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Take a signal; a second Ctrl-C ends the process at once."""
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = self._signal or number

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Inside, signals ask this rank to save and end; the launcher learns that it can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.receive)
            for number in SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        notify_launcher(CAN_SAVE, "")
        try:
            yield
        finally:
            notify_launcher(CAN_SAVE, None)
            for number, handler in before.items():
                signal.signal(number, handler)
