"""When checkpoints are due, and the thread that writes them while training continues."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from paceline.checkpoint.store import Store
from paceline.core.quantities import Period
from paceline.core.trees import Tree
from paceline.errors import OutputError, RanksLost

_NICENESS = 10
"""A tenth of a core where all are busy: hundreds of megabytes in some seconds."""


def name_of(number: int) -> str:
    """The name of the checkpoint after so many steps."""
    return f"step-{number:08d}"


def number_of(name: str) -> int:
    """After how many steps the checkpoint of that name was made."""
    return int(name.rpartition("-")[2])


def _lower_priority() -> None:
    """Let this thread use only what training leaves of the cores; Linux has nice per thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class OpenCheckpoint(NamedTuple):
    """A checkpoint that is being written."""

    number: int | None
    """None: it cannot be written."""
    constants: int
    """A hash of the constants that the leader saves."""
    again_s: float | None = None
    """Of one in node memory: in how many seconds the next is due. None: it goes to the disk."""


class Saver:
    """Writes checkpoints in a thread, one at a time.

    The leading rank opens one; every rank then submits copies of its parts and continues training.
    The leader's thread waits for all parts to be on disk and commits them. A checkpoint that cannot
    be written is reported at once by the rank that cannot write it, and training continues.
    """

    def __init__(
        self, store: Store, every: int | str | None, report: Callable[[str], None]
    ) -> None:
        self._store, self._report = store, report
        self._period = Period.parse(every) if every is not None else None
        self.each_epoch = every == "epoch"
        self.regular = every is not None
        self._thread = ThreadPoolExecutor(1, "paceline-saver", initializer=_lower_priority)
        self._under_way: list[Future[None]] = []
        self._open: str | None = None
        self._problem: OutputError | None = None
        self._reported: str | None = None
        self.begin_period(0)

    def begin_period(self, step: int) -> None:
        """Restart the period: a checkpoint is being written, or the run begins."""
        self._since_step, self._since = step, monotonic()

    def is_due(self, step: int) -> bool:
        """Whether one is due after that many steps of this rank."""
        period = self._period
        if period is None or self.each_epoch:
            return False
        return period.is_over(step - self._since_step, monotonic() - self._since)

    def open(self, step: int) -> int | None:
        """Begin one on the leading rank, when the last is done; None if it cannot be written."""
        self._wait()
        self._problem = None
        self._open = name_of(step)
        self._do(self._open, self._store.begin)
        return step if self._problem is None else None

    def add(self, number: int, part: str, tree: Tree) -> None:
        """Write a part of it, in the thread."""
        self._submit(name_of(number), lambda name: self._store.write(name, part, tree))

    def commit(self, number: int, parts: Sequence[str], facts: Tree) -> None:
        """Make it a checkpoint, in the thread, when all parts are on disk."""
        self._submit(name_of(number), lambda name: self._store.commit(name, parts, facts))

    def finish(self) -> OutputError | None:
        """Wait until everything is on disk; returns what went wrong with the last one."""
        self._wait()
        return self._problem

    def close(self) -> None:
        """Wait, and end the thread."""
        self._wait()
        self._thread.shutdown()

    def is_open(self, number: int) -> bool:
        """Whether that one is being written here."""
        return self._store.has_draft(name_of(number))

    def end(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close it; or abandon it, if ranks are lost that had a part of what is being written."""
        if kind is not None and issubclass(kind, RanksLost):
            self.abandon()
        else:
            self.close()

    def abandon(self) -> None:
        """Ranks were lost: what is not on disk will be no checkpoint, and nobody waits for it."""
        self._report = lambda text: None
        if self._open is not None:
            with suppress(OutputError, OSError):
                self._store.discard(self._open)
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._under_way.clear()

    def _submit(self, name: str, action: Callable[[str], None]) -> None:
        self._under_way.append(self._thread.submit(self._do, name, action))

    def _do(self, name: str, action: Callable[[str], None]) -> None:
        """Report a checkpoint that cannot be written, once."""
        try:
            action(name)
        except OutputError as error:
            if self._reported != name:
                self._report(str(error))
            self._problem, self._reported = error, name

    def _wait(self) -> None:
        """Wait for everything that was submitted."""
        while self._under_way:
            self._under_way.pop(0).result()
