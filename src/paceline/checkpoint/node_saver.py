"""Checkpoints in node memory, for ranks that are started again when one of them is lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from paceline.checkpoint.saver import Saver, number_of
from paceline.checkpoint.store import Store, newest_valid

_SHORTEST_S = 2.0
_TIMES_ITS_COST = 100
"""One is due after so many times what the last has cost, so that all cost 1 % of the time."""


class NodeSaver(Saver):
    """Writes checkpoints into node memory, as often as they cost next to nothing.

    There are two at a time: one that is whole, and one that is being written. All ranks know from
    the leader when the next is due, so that they come together for it at the same time.
    """

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        super().__init__(Store(folder, keep=1), None, self._report_first)
        self._say, self._has_said = report, False
        self._again_s = _SHORTEST_S
        self._cost_s = self._written_s = 0.0

    def is_due(self, step: int) -> bool:
        return monotonic() - self._since >= self._again_s

    def again_s(self, step: int, run_freely: bool) -> float:
        """On the leading rank, when one is begun after that step: in how many seconds the next is
        due. Ranks that `run_freely` between exchanges wait for a step of the slowest to save."""
        steps = max(1, step - self._since_step)
        wait_s = (monotonic() - self._since) / steps if run_freely else 0.0
        return max(_SHORTEST_S, _TIMES_ITS_COST * (self._cost_s + self._written_s + wait_s))

    def begin_next(self, step: int, again_s: float) -> None:
        """One is being written; the next is due in so many seconds."""
        self._again_s, self._written_s = again_s, 0.0
        self.begin_period(step)

    def note_pause(self, seconds: float) -> None:
        """How long the ranks have paused for the last one."""
        self._cost_s = seconds

    def _report_first(self, problem: str) -> None:
        """Memory that is full now may have room later, and another is due soon."""
        if not self._has_said:
            self._say(problem)
        self._has_said = True

    def _do(self, name: str, action: Callable[[str], None]) -> None:
        began_s = time.thread_time()
        super()._do(name, action)
        self._written_s += time.thread_time() - began_s


def has_room(folder: Path, nbytes: int) -> bool:
    """Whether two checkpoints of that size fit, and as much again stays free."""
    return shutil.disk_usage(folder).free >= 3 * nbytes


def copy_newest(source: Path | None, target: Path) -> bool:
    """Copy the newest checkpoint of a folder to another that has only older ones; whether there is
    one then."""
    store = Store(target)
    there = newest_valid(store, lambda text: None)
    name = None if source is None else newest_valid(Store(source), lambda text: None)
    if source is None or name is None:
        return there is not None
    if there is None or number_of(there) < number_of(name):
        store.accept(name, source / name)
    return True
