"""Watching the ranks from outside: who waits for whom, and who will never come.

A thread on every rank looks about once a second at where the rank's work is, by the stack of its
thread (`stacks.py`), and tells rank 0, which judges (`stalls.py`). Rank 0 tells rank 1 that it is
alive. What is watched pays nothing for it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.comm import Backoff, Pending, World, current_world
from paceline.errors import WorldError
from paceline.runtime.job_dir import PULSE, notify_launcher
from paceline.runtime.watchdog.stack import Activity, read_activity
from paceline.runtime.watchdog.stall_detector import (
    PULSE_BYTES,
    Finding,
    Heartbeat,
    StallDetector,
    decode,
    encode,
)

Progress = Callable[[], tuple[int, int]]
"""A count that grows whenever this rank gets on, and its step; called from another thread."""

_BEAT_S = 1.0
_SHORTEST_BEAT_S = 0.05
_PULSES_PER_S = 200
"""As many as rank 0 takes: in a larger world every rank tells less often."""
_LONGEST_BEAT_S = 5.0
_FAREWELL_S = 5.0
"""How long a rank that ends tries to say so."""

_log = logging.getLogger("paceline")


@dataclass(frozen=True, eq=False)
class _Section:
    """A part of the program in which a rank's stall is judged."""

    progress: Progress
    warning_s: float
    timeout_s: float
    thread: int


_sections: list[_Section] = []
_turns = 0
"""How often a section was entered or left."""
_watch: RankWatch | None = None
_STEP = "_paceline_step"
"""On an error that has left a section: the step at which it did."""


@contextlib.contextmanager
def watched(progress: Progress, warning_s: float, timeout_s: float) -> Iterator[None]:
    """Around work that all ranks do together: if nothing moves, say so, and end them in the end.

    After `warning_s` in which this rank has waited and no rank has got on, rank 0 says who is
    missing; after `timeout_s` it ends all ranks. Of nested sections the inner one counts. In a
    process that is not watched (no MPI, or one whose threads may not talk) it does nothing.
    """
    global _turns
    if _watch is None or current_world.get() is not None:
        yield
        return
    section = _Section(progress, warning_s, timeout_s, threading.get_ident())
    _sections.append(section)
    _turns += 1
    try:
        yield
    except BaseException as error:
        vars(error).setdefault(_STEP, _step_in(section))
        raise
    finally:
        _sections.remove(section)
        _turns += 1


def step_of(error: BaseException) -> int | None:
    """The step of the section that this error has left, or, if it has left none, of the one that
    this rank is in; None if it is in none."""
    noted: int | None = vars(error).get(_STEP)
    section = next(iter(_sections[-1:]), None)
    return _step_in(section) if noted is None and section is not None else noted


def _step_in(section: _Section) -> int | None:
    try:
        return section.progress()[1]
    except Exception:  # what it counts may be what failed
        return None


def start_watch(world: World, end: Callable[[WorldError], object]) -> None:
    """RankWatch this rank from now on; all ranks start together. `end` ends all of them."""
    global _watch
    known = world.allgather_values((world.node, world.thread_multiple))
    if world.size == 1 or not all(may_talk for _, may_talk in known):
        return
    line = world.split(0)
    nodes = [node for node, _ in known]
    if world.rank > 1:
        _watch = HeartbeatSender(line)
    else:
        _watch = Rank0Watch(line, nodes, end) if world.rank == 0 else Rank1Deputy(line, nodes, end)
    _watch.start()
    # MPI ends when Python has, after all that is registered here.
    atexit.register(_leave, _watch, os.getpid())
    _leave_before_finalize(_watch)


def _leave(watch: RankWatch, pid: int) -> None:
    if os.getpid() == pid and not _mpi_is_over():  # a fork of a rank is no rank
        watch.leave()


def _leave_before_finalize(watch: RankWatch) -> None:
    """A program may end MPI itself, and no call of ours may come after that."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        return
    plain, pid = mpi.Finalize, os.getpid()

    def finalize() -> None:
        _leave(watch, pid)
        plain()

    mpi.Finalize = finalize


def silence() -> None:
    """This rank fails and will end all others: nothing more is sent nor judged."""
    if _watch is not None:
        _watch.hushed = True


def _mpi_is_over() -> bool:
    """Whether the program has ended MPI itself."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and bool(mpi.Is_finalized())


class RunningClock:
    """Seconds in which this process ran: one that was stopped for an hour has not waited for it."""

    def __init__(self, read_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = 0.0
        self._read_s, self._read = read_s, read_s()

    def tick(self, longest_s: float = 3.0) -> float:
        """The time now; since the last tick no more than `longest_s` counts."""
        read = self._read_s()
        self.now_s += min(read - self._read, longest_s)
        self._read = read
        return self.now_s


class Tracker:
    """Turns what is seen of this rank into its pulse, beat by beat."""

    def __init__(self) -> None:
        self._moved: tuple[int, int] = (-1, 0)
        self._waits: object = None
        self._moved_s = self._waits_s = 0.0
        self._step: int | None = None

    def look(self, now_s: float) -> Heartbeat:
        """What this rank does now, and since when it has done nothing else."""
        turns, section = _turns, next(iter(_sections[-1:]), None)
        count = self._count(section) if section is not None else 0
        doing = read_activity(section.thread if section else threading.main_thread().ident or 0)
        if (turns, count) != self._moved:
            self._moved, self._moved_s, self._waits = (turns, count), now_s, None
        self._note_waiting(doing, section is not None, now_s)
        return Heartbeat(
            progress=count,
            step=self._step,
            state=doing.state,
            where=doing.where,
            since_s=now_s - self._moved_s,
            waiting_s=now_s - self._waits_s if doing.state == "waiting" else 0.0,
            warning_s=section.warning_s if section else None,
            timeout_s=section.timeout_s if section else None,
        )

    def _count(self, section: _Section) -> int:
        try:
            count, self._step = section.progress()
        except Exception:
            if section in _sections:
                raise
            return 0  # it ended this moment, and what it counted has gone with it
        return count

    def _note_waiting(self, doing: Activity, in_section: bool, now_s: float) -> None:
        """In a section progress tells one wait from the next; outside, that it is the same call.

        The frame of that call is kept until the next beat: a number of it would be used again.
        """
        waits: object = None
        if doing.state == "waiting":
            waits = "in a section" if in_section else doing.call
        if waits is not self._waits or waits is None:
            self._waits, self._waits_s = waits, now_s


class RankWatch:
    """A rank's thread that looks and reports: `Rank0Watch`, or `HeartbeatSender` elsewhere."""

    def __init__(self, line: World) -> None:
        self.hushed = False
        self._line = line
        self._clock, self._tracker = RunningClock(), Tracker()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """This rank ends; what it still has to say is said."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._beat()
                self._rest()
        except Exception as error:
            if not self._is_over():
                # A run does not depend on being watched.
                _log.warning(
                    "stalls are no longer watched for: %s: %s", type(error).__name__, error
                )

    def _is_over(self) -> bool:
        return self.hushed or _mpi_is_over()

    def _beat(self) -> None:
        raise NotImplementedError

    def _rest(self) -> None:
        self._leaving.wait(self._beat_s())

    def _act_on(self, verdict: Finding | None, end: Callable[[WorldError], object]) -> None:
        if verdict is None or self.hushed:
            return
        if verdict.end:
            end(WorldError(verdict.text))
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be closed
            sys.stderr.write(f"paceline: {verdict.text}\n")
            sys.stderr.flush()

    def _beat_s(self) -> float:
        warning_s = min((section.warning_s for section in _sections), default=float("inf"))
        return beat_s(self._line.size, warning_s)


def beat_s(ranks: int, warning_s: float) -> float:
    """Seconds between two pulses: soon enough for the warning, and not too many for rank 0.

    >>> beat_s(4, 30), beat_s(4, 1), beat_s(1000, 30)
    (1.0, 0.25, 5.0)
    """
    wanted_s = min(_BEAT_S, max(warning_s / 4, _SHORTEST_BEAT_S))
    return max(wanted_s, min(ranks / _PULSES_PER_S, _LONGEST_BEAT_S))


class _Mail:
    """Pulses to one rank, of which at most one is under way."""

    def __init__(self, line: World, to: int) -> None:
        self._line, self._to = line, to
        self._room = np.zeros(PULSE_BYTES, np.uint8)
        self._under_way: Pending | None = None

    def offer(self, pulse: Heartbeat) -> None:
        """Send it, unless the one before is still here: then nobody listens now."""
        if self.is_gone():
            encode(pulse, self._room)
            self._under_way = self._line.isend(self._room, self._to)

    def is_gone(self) -> bool:
        return self._under_way is None or self._under_way.done()

    def wait_until_gone(self) -> None:
        patience, end = Backoff(), time.monotonic() + _FAREWELL_S
        while not self.is_gone() and time.monotonic() < end:
            patience.pause()


class _Ear:
    """Pulses of other ranks, for a judge."""

    def __init__(self, line: World, judge: StallDetector) -> None:
        self._line, self._judge = line, judge
        self._room = np.zeros(PULSE_BYTES, np.uint8)
        self._coming = line.irecv(self._room)

    def hear(self, now_s: float) -> None:
        """Hand on what has come."""
        while self._coming.done():
            self._judge.hear(self._coming.source, decode(self._room), now_s)
            self._coming = self._line.irecv(self._room)

    def close(self) -> None:
        self._coming.cancel()


class HeartbeatSender(RankWatch):
    """Tells rank 0 about this rank."""

    def __init__(self, line: World) -> None:
        super().__init__(line)
        self._mail = _Mail(line, 0)
        self._last = Heartbeat()

    def _is_over(self) -> bool:
        return self._leaving.is_set() or super()._is_over()

    def _beat(self) -> None:
        self._last = self._tracker.look(self._clock.tick(3 * self._beat_s()))
        self._mail.offer(self._last)

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(_FAREWELL_S)
        if not self._thread.is_alive():
            self._mail.wait_until_gone()
            self._mail.offer(replace(self._last, state="left"))
            self._mail.wait_until_gone()


class Rank1Deputy(HeartbeatSender):
    """Judges rank 0, on rank 1, when nothing is heard of it: then it cannot judge itself."""

    def __init__(self, line: World, nodes: list[str], end: Callable[[WorldError], object]) -> None:
        super().__init__(line)
        self._judge = StallDetector(nodes[:2], self._clock.now_s)
        self._ear = _Ear(line, self._judge)
        self._end = end

    def _beat(self) -> None:
        super()._beat()
        now_s = self._clock.now_s
        self._ear.hear(now_s)
        self._judge.hear(1, self._last, now_s)
        silent = self._judge.silence_s(0, now_s) >= (self._last.warning_s or float("inf"))
        if silent or self._judge.has_warned:
            self._act_on(self._judge.look(now_s), self._end)

    def leave(self) -> None:
        super().leave()
        if not self._thread.is_alive():
            self._ear.close()


class Rank0Watch(RankWatch):
    """Hears all ranks, on rank 0, and acts on what the judge says."""

    def __init__(self, line: World, nodes: list[str], end: Callable[[WorldError], object]) -> None:
        super().__init__(line)
        self._judge = StallDetector(nodes, self._clock.now_s)
        self._ear, self._mail = _Ear(line, self._judge), _Mail(line, 1)
        self._end = end
        self._written_s = 0.0

    def leave(self) -> None:
        """Stay until all others have left, as MPI would: some of them may wait for this one."""
        self._leaving.set()
        self._thread.join()

    def _is_over(self) -> bool:
        if super()._is_over():
            return True
        over = self._leaving.is_set() and self._judge.is_last(0, self._clock.now_s)
        if over:
            self._ear.close()
        return over

    def _beat(self) -> None:
        now_s = self._clock.tick(3 * self._beat_s())
        pulse = self._tracker.look(now_s)
        if self._leaving.is_set():
            pulse = replace(pulse, state="left")
        self._judge.hear(0, pulse, now_s)
        self._ear.hear(now_s)
        if not self._judge.has_left(1):
            self._mail.offer(pulse)
        verdict = self._judge.look(now_s)
        if now_s - self._written_s >= _BEAT_S or verdict is not None:
            self._written_s = now_s
            write_known(self._judge.known())
        self._act_on(verdict, self._end)

    def _rest(self) -> None:
        if not self._leaving.wait(self._beat_s()):
            return
        # Nothing else is to be done here: look often, so that all end at once.
        patience, end = Backoff(), time.monotonic() + self._beat_s()
        while time.monotonic() < end and not self._judge.is_last(0, self._clock.now_s):
            patience.pause()
            self._ear.hear(self._clock.now_s)

    def _beat_s(self) -> float:
        return min(super()._beat_s(), beat_s(self._line.size, self._judge.shortest_warning_s()))


def write_known(known: dict[str, dict[str, object]]) -> None:
    """Leave what is known of the ranks in the job's folder, for the launcher; if there is one."""
    notify_launcher(PULSE, json.dumps(known))
