"""Sections of a program whose stalls are judged, and what this rank does in them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paceline.comm import current_world
from paceline.runtime.watchdog.stack import Activity, read_activity
from paceline.runtime.watchdog.stall_detector import Heartbeat

Progress = Callable[[], tuple[int, int]]
"""A count that grows with this rank's progress, and its step; called from another thread."""

_STEP = "_paceline_step"
"""On an error that has left a section: the step at which it did."""


@dataclass(frozen=True, eq=False)
class WatchedSection:
    """A part of the program in which a rank's stall is judged."""

    progress: Progress
    warning_s: float
    timeout_s: float
    thread: int

    def step(self) -> int | None:
        try:
            return self.progress()[1]
        except Exception:  # what it counts may be what failed
            return None


class Sections:
    """The sections that this rank is in, the innermost last."""

    def __init__(self) -> None:
        self.are_watched = False
        self.entered: list[WatchedSection] = []
        self.turns = 0
        """How often one was entered or left."""

    def innermost(self) -> WatchedSection | None:
        return next(
            iter(self.entered[-1:]), None
        )  # one call: another thread may leave it meanwhile

    def shortest_warning_s(self) -> float:
        return min((section.warning_s for section in self.entered), default=float("inf"))


own_sections = Sections()
"""Those of this process."""


@contextlib.contextmanager
def watched(progress: Progress, warning_s: float, timeout_s: float) -> Iterator[None]:
    """Around work that all ranks do together: a stall is reported, and in the end ends all ranks.

    After `warning_s` in which this rank has waited and no rank has made progress, rank 0 says who
    is missing; after `timeout_s` it ends all ranks. Of nested sections the inner one counts. It
    does nothing in a process that is not watched (no MPI, or one without MPI_THREAD_MULTIPLE).
    """
    if not own_sections.are_watched or current_world.get() is not None:
        yield
        return
    section = WatchedSection(progress, warning_s, timeout_s, threading.get_ident())
    own_sections.entered.append(section)
    own_sections.turns += 1
    try:
        yield
    except BaseException as error:
        vars(error).setdefault(_STEP, section.step())
        raise
    finally:
        own_sections.entered.remove(section)
        own_sections.turns += 1


def step_of(error: BaseException) -> int | None:
    """The step of the section that this error has left, or else of the one that this rank is in;
    None if there is neither."""
    noted: int | None = vars(error).get(_STEP)
    section = own_sections.innermost()
    return section.step() if noted is None and section is not None else noted


class Tracker:
    """Turns what this rank is seen to do into its heartbeats."""

    def __init__(self) -> None:
        self._moved: tuple[int, int] = (-1, 0)
        self._waits: object = None
        self._moved_s = self._waits_s = 0.0
        self._step: int | None = None

    def look(self, now_s: float) -> Heartbeat:
        """What this rank does now, and how long it has done nothing else."""
        turns, section = own_sections.turns, own_sections.innermost()
        count = self._count(section) if section is not None else 0
        activity = read_activity(section.thread if section else threading.main_thread().ident or 0)
        if (turns, count) != self._moved:
            self._moved, self._moved_s, self._waits = (turns, count), now_s, None
        self._note_waiting(activity, section is not None, now_s)
        return Heartbeat(
            progress=count,
            step=self._step,
            state=activity.state,
            where=activity.where,
            since_s=now_s - self._moved_s,
            waiting_s=now_s - self._waits_s if activity.state == "waiting" else 0.0,
            warning_s=section.warning_s if section else None,
            timeout_s=section.timeout_s if section else None,
        )

    def _count(self, section: WatchedSection) -> int:
        try:
            count, self._step = section.progress()
        except Exception:
            if section in own_sections.entered:
                raise
            return 0  # it ended this moment, and what it counted has gone with it
        return count

    def _note_waiting(self, activity: Activity, in_section: bool, now_s: float) -> None:
        """In a section progress separates one wait from the next; outside, the call does.

        The frame of that call is kept until the next beat: its id could be reused.
        """
        waits: object = None
        if activity.state == "waiting":
            waits = "in a section" if in_section else activity.call
        if waits is not self._waits or waits is None:
            self._waits, self._waits_s = waits, now_s
