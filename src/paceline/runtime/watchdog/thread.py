"""The watchdog's threads: which rank waits for which, and for one that will never come.

A thread on every rank reads about once a second what the rank does, from the stack of its thread
(`stack.py`), and sends it to rank 0 as a heartbeat. Rank 0 looks for stalls (`stall_detector.py`),
and sends heartbeats to rank 1. The work that is watched pays nothing for it.
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
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.comm import Backoff, Pending, World
from paceline.errors import RanksLost, WorldError
from paceline.runtime.job_dir import AGAIN, ELASTIC, HEARTBEATS, notify_launcher
from paceline.runtime.watchdog.killing import Killer, Orders, own_process
from paceline.runtime.watchdog.sections import Tracker, own_sections
from paceline.runtime.watchdog.stall_detector import (
    HEARTBEAT_BYTES,
    Finding,
    Heartbeat,
    StallDetector,
    decode,
    encode,
)

_BEAT_S = 1.0
_SHORTEST_BEAT_S = 0.05
_HEARTBEATS_PER_S = 200
"""As many as rank 0 handles: in a larger world every rank sends fewer."""
_LONGEST_BEAT_S = 5.0
_GOODBYE_S = 5.0
"""How long a rank that ends tries to report it."""
_FORWARD_S = 0.2
"""Time for the launcher to forward a message of a rank that is killed."""

_log = logging.getLogger("paceline")
End = Callable[[WorldError], object]
"""Ends all ranks."""


_watch: RankWatch | None = None


def start_watch(world: World, end: End) -> None:
    """Watch this rank from now on; all ranks start together. `end` ends all of them."""
    global _watch
    silence()  # one of a world that has ended
    known = world.allgather_values((own_process(world.node), world.thread_multiple))
    if world.size == 1 or not all(may_talk for _, may_talk in known):
        return
    comm = world.split(0)
    processes = [process for process, _ in known]
    nodes = [process.node for process in processes]
    goes_on = world.elastic or os.environ.get(ELASTIC) == AGAIN
    killer = Killer(comm, processes) if goes_on else None
    if world.rank > 1:
        _watch = HeartbeatSender(comm)
    else:
        kind = Rank0Watch if world.rank == 0 else Rank1Deputy
        _watch = kind(comm, nodes, end, killer)
    _watch.start()
    own_sections.are_watched = True
    # MPI ends when Python has, after all that is registered here.
    atexit.register(_leave, _watch, os.getpid())
    _leave_before_finalize(_watch)


def _leave(watch: RankWatch, pid: int) -> None:
    if os.getpid() == pid and not _mpi_is_over() and not watch.silenced:  # a fork is no rank
        with contextlib.suppress(RanksLost):
            watch.leave()


def _leave_before_finalize(watch: RankWatch) -> None:
    """A program may end MPI itself, and no MPI call of ours may come after that."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        return
    plain, pid = mpi.Finalize, os.getpid()

    def finalize() -> None:
        _leave(watch, pid)
        plain()

    mpi.Finalize = finalize


def silence() -> None:
    """This rank fails and will end all others: it sends and reports nothing more."""
    if _watch is not None:
        _watch.silenced = True


def _mpi_is_over() -> bool:
    """Whether the program has ended MPI itself."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and bool(mpi.Is_finalized())


class RunningClock:
    """Seconds for which this process ran: while it is stopped, it does not wait."""

    def __init__(self, read_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = 0.0
        self._read_s, self._read = read_s, read_s()

    def tick(self, longest_s: float = 3.0) -> float:
        """The time now; since the last tick no more than `longest_s` counts."""
        read = self._read_s()
        self.now_s += min(read - self._read, longest_s)
        self._read = read
        return self.now_s


class RankWatch:
    """A rank's watchdog thread: `Rank0Watch`, or `HeartbeatSender` elsewhere."""

    def __init__(self, world: World) -> None:
        self.silenced = False
        self._world = world
        self._clock, self._tracker = RunningClock(), Tracker()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """This rank ends; its last heartbeat is sent."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._beat()
                self._pause()
        except RanksLost:  # the next world is watched anew
            return
        except Exception as error:
            if not self._is_over():
                # A run does not depend on being watched.
                _log.warning(
                    "stalls are no longer watched for: %s: %s", type(error).__name__, error
                )

    def _is_over(self) -> bool:
        return self.silenced or _mpi_is_over()

    def _beat(self) -> None:
        raise NotImplementedError

    def _pause(self) -> None:
        self._leaving.wait(self._beat_s())

    def _act_on(self, finding: Finding | None, end: End, killer: Killer | None) -> None:
        if finding is None or self.silenced:
            return
        if killer is not None and finding.hung:
            ranks = ", ".join(str(rank) for rank, _ in finding.hung)
            self._say(
                f"{finding.facts}; rank {ranks} is killed (stall_timeout_s), and the others go on"
            )
            time.sleep(_FORWARD_S)
            for rank, by in finding.hung:
                killer.kill(rank, by)
        elif finding.end:
            end(WorldError(finding.text))
        else:
            self._say(finding.text)

    @staticmethod
    def _say(text: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be closed
            sys.stderr.write(f"paceline: {text}\n")
            sys.stderr.flush()

    def _beat_s(self) -> float:
        return beat_s(self._world.size, own_sections.shortest_warning_s())


def beat_s(ranks: int, warning_s: float) -> float:
    """Seconds between two heartbeats: soon enough for the warning, and not too many for rank 0.

    >>> beat_s(4, 30), beat_s(4, 1), beat_s(1000, 30)
    (1.0, 0.25, 5.0)
    """
    wanted_s = min(_BEAT_S, max(warning_s / 4, _SHORTEST_BEAT_S))
    return max(wanted_s, min(ranks / _HEARTBEATS_PER_S, _LONGEST_BEAT_S))


class _Outbox:
    """Heartbeats to one rank, of which at most one is under way."""

    def __init__(self, world: World, to: int) -> None:
        self._world, self._to = world, to
        self._buffer = np.zeros(HEARTBEAT_BYTES, np.uint8)
        self._under_way: Pending | None = None

    def offer(self, heartbeat: Heartbeat) -> None:
        """Send it, unless the last one is still here: then nobody receives now."""
        if self.is_sent():
            encode(heartbeat, self._buffer)
            self._under_way = self._world.isend(self._buffer, self._to)

    def is_sent(self) -> bool:
        return self._under_way is None or self._under_way.done()

    def wait_until_sent(self) -> None:
        backoff, end = Backoff(), time.monotonic() + _GOODBYE_S
        while not self.is_sent() and time.monotonic() < end:
            backoff.pause()


class _Inbox:
    """Heartbeats of other ranks, for a stall detector."""

    def __init__(self, world: World, detector: StallDetector) -> None:
        self._world, self._detector = world, detector
        self._buffer = np.zeros(HEARTBEAT_BYTES, np.uint8)
        self._arriving = world.irecv(self._buffer)

    def deliver(self, now_s: float) -> None:
        """Hand on what has arrived."""
        while self._arriving.done():
            self._detector.hear(self._arriving.source, decode(self._buffer), now_s)
            self._arriving = self._world.irecv(self._buffer)

    def close(self) -> None:
        self._arriving.cancel()


class HeartbeatSender(RankWatch):
    """Reports this rank to rank 0."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._outbox, self._orders = _Outbox(world, 0), Orders(world)
        self._last = Heartbeat()

    def _is_over(self) -> bool:
        return self._leaving.is_set() or super()._is_over()

    def _beat(self) -> None:
        self._last = self._tracker.look(self._clock.tick(3 * self._beat_s()))
        self._outbox.offer(self._last)
        self._orders.obey()

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(_GOODBYE_S)
        if not self._thread.is_alive():
            self._outbox.wait_until_sent()
            self._outbox.offer(replace(self._last, state="left"))
            self._outbox.wait_until_sent()
            self._orders.close()


class Rank1Deputy(HeartbeatSender):
    """Looks for stalls on rank 1 when rank 0 is silent, and so cannot do it."""

    def __init__(
        self, world: World, nodes: list[str], end: End, killer: Killer | None = None
    ) -> None:
        super().__init__(world)
        self._killer = killer
        self._detector = StallDetector(nodes[:2], self._clock.now_s)
        self._inbox = _Inbox(world, self._detector)
        self._end = end

    def _beat(self) -> None:
        super()._beat()
        now_s = self._clock.now_s
        self._inbox.deliver(now_s)
        self._detector.hear(1, self._last, now_s)
        silent = self._detector.silence_s(0, now_s) >= (self._last.warning_s or float("inf"))
        if silent or self._detector.has_warned:
            self._act_on(self._detector.look(now_s), self._end, self._killer)

    def leave(self) -> None:
        super().leave()
        if not self._thread.is_alive():
            self._inbox.close()


class Rank0Watch(RankWatch):
    """Receives the heartbeats of all ranks, on rank 0, and acts on the detector's findings."""

    def __init__(
        self, world: World, nodes: list[str], end: End, killer: Killer | None = None
    ) -> None:
        super().__init__(world)
        self._killer = killer
        self._detector = StallDetector(nodes, self._clock.now_s)
        self._inbox, self._outbox = _Inbox(world, self._detector), _Outbox(world, 1)
        self._end = end
        self._written_s = 0.0

    def leave(self) -> None:
        """Stay until all others have left, as MPI would: some of them may wait for this one."""
        self._leaving.set()
        self._thread.join()

    def _is_over(self) -> bool:
        if super()._is_over():
            return True
        over = self._leaving.is_set() and self._detector.is_last(0, self._clock.now_s)
        if over:
            self._inbox.close()
        return over

    def _beat(self) -> None:
        now_s = self._clock.tick(3 * self._beat_s())
        heartbeat = self._tracker.look(now_s)
        if self._leaving.is_set():
            heartbeat = replace(heartbeat, state="left")
        self._detector.hear(0, heartbeat, now_s)
        self._inbox.deliver(now_s)
        if not self._detector.has_left(1):
            self._outbox.offer(heartbeat)
        finding = self._detector.look(now_s)
        if now_s - self._written_s >= _BEAT_S or finding is not None:
            self._written_s = now_s
            write_known(self._detector.known())
        self._act_on(finding, self._end, self._killer)

    def _pause(self) -> None:
        if not self._leaving.wait(self._beat_s()):
            return
        # Nothing else is left to do here: look often, so that all ranks end at once.
        backoff, end = Backoff(), time.monotonic() + self._beat_s()
        while time.monotonic() < end and not self._detector.is_last(0, self._clock.now_s):
            backoff.pause()
            self._inbox.deliver(self._clock.now_s)

    def _beat_s(self) -> float:
        return min(super()._beat_s(), beat_s(self._world.size, self._detector.shortest_warning_s()))


def write_known(known: dict[str, dict[str, object]]) -> None:
    """Leave what is known of the ranks in the job directory for the launcher, if there is one."""
    notify_launcher(HEARTBEATS, json.dumps(known))
