"""Checkpoints of a run: when they are due, and how they get to disk while training goes on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from paceline.checkpoint.store import Store
from paceline.checkpoint.tree import Tree
from paceline.core.quantities import Period
from paceline.errors import OutputError

_NICENESS = 10
"""A tenth of a core where all are busy: hundreds of megabytes in some seconds."""


def name_of(number: int) -> str:
    """Of the checkpoint after so many steps."""
    return f"step-{number:08d}"


def _stand_back() -> None:
    """Let this thread have what training leaves of the cores; on Linux a thread has its own."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class OpenCheckpoint(NamedTuple):
    """A checkpoint that is being made."""

    number: int | None
    """None: it cannot be written."""
    constants: int
    """A hash of the constants that the leader saves."""


class Saver:
    """Writes checkpoints in a thread, one at a time.

    The leading rank opens one, every rank then hands over its parts and goes on training; what it
    hands over is a copy. The leader's thread waits for all parts to be on disk and commits them.
    A checkpoint that cannot be written is reported at once by the rank that cannot write it, and
    training goes on.
    """

    def __init__(
        self, store: Store, every: int | str | None, report: Callable[[str], None]
    ) -> None:
        self._store, self._report = store, report
        self._period = Period.parse(every) if every is not None else None
        self.each_epoch = every == "epoch"
        self.regular = every is not None
        self._thread = ThreadPoolExecutor(1, "paceline-saver", initializer=_stand_back)
        self._under_way: list[Future[None]] = []
        self._problem: OutputError | None = None
        self._reported: str | None = None
        self.begin_period(0)

    def begin_period(self, step: int) -> None:
        """A checkpoint is being made, or the run begins."""
        self._since_step, self._since = step, monotonic()

    def is_due(self, step: int) -> bool:
        """Whether one is due after that many steps of this rank."""
        period = self._period
        if period is None or self.each_epoch:
            return False
        return period.is_over(step - self._since_step, monotonic() - self._since)

    def open(self, step: int) -> int | None:
        """The leader begins one, when the last is done; None if it cannot be written."""
        self._wait()
        self._problem = None
        self._do(self._store.begin, name_of(step))
        return step if self._problem is None else None

    def add(self, number: int, part: str, tree: Tree) -> None:
        """Write a part of it, later."""
        self._submit(self._store.write, name_of(number), part, tree)

    def commit(self, number: int, parts: Sequence[str], facts: Tree) -> None:
        """Let it be a checkpoint when all parts are there."""
        self._submit(self._store.commit, name_of(number), parts, facts)

    def finish(self) -> OutputError | None:
        """Wait until all is on disk; what went wrong with the last one."""
        self._wait()
        return self._problem

    def close(self) -> None:
        """Wait, and end the thread."""
        self._wait()
        self._thread.shutdown()

    def _submit(self, action: Callable[..., None], name: str, *details: Any) -> None:
        self._under_way.append(self._thread.submit(self._do, action, name, *details))

    def _do(self, action: Callable[..., None], name: str, *details: Any) -> None:
        """Report what cannot be written: once for each checkpoint."""
        try:
            action(name, *details)
        except OutputError as error:
            if self._reported != name:
                self._report(str(error))
            self._problem, self._reported = error, name

    def _wait(self) -> None:
        """Until what was handed over before is done."""
        while self._under_way:
            self._under_way.pop(0).result()
