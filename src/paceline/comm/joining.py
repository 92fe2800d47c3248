"""Processes that join a job while it runs. Importing this module starts MPI.

Rank 0 lets MPI start a newcomer, which gets ready alone: it imports, opens data, builds its model.
When it says that it is ready the ranks leave their work for a moment and take it into their world,
through the link that it has to rank 0.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mpi4py import MPI

from paceline.comm.elastic import ElasticWorld, Generation
from paceline.comm.polling import wait_until
from paceline.comm.values import from_bytes, to_bytes
from paceline.comm.world import Buffer
from paceline.errors import RanksLost, WorldError

_READY, _CALL, _MERGE = 1, 2, 3
_WELCOME = (0, 0)
_POLL_S = 0.01
_ANSWER_S = 60.0
"""How long a newcomer that has been called waits for the others to agree that it is in."""


class Newcomer:
    """A process that was started to join, as rank 0 sees it."""

    def __init__(self, command: Sequence[str], folder: Path, host: str | None = None) -> None:
        """Start it, on that host of the job, or where MPI finds room. The call returns when it is
        in MPI, after a second or so, so a thread of its own makes it.

        Each newcomer is a job of its own: MPI ends all processes of a job that was started from
        within another when one of them is lost.
        """
        info = MPI.Info.Create()
        info.Set("wdir", str(folder))
        if host is not None:
            info.Set("host", host)
        try:
            link = MPI.COMM_SELF.Spawn(command[0], list(command[1:]), maxprocs=1, info=info)
            self._link = link.Merge(high=False)
        except MPI.Exception as error:
            raise WorldError(f"MPI could not start a process: {error}") from None
        finally:
            info.Free()
        self._link.Set_errhandler(MPI.ERRORS_RETURN)
        self._sent: list[tuple[MPI.Request, Buffer]] = []

    def is_ready(self) -> bool:
        """Whether it waits for us; never waits."""
        with contextlib.suppress(MPI.Exception):
            return bool(self._link.Iprobe(source=1, tag=_READY))
        return False

    def is_lost(self) -> bool:
        """Whether it has ended before it was in; never waits."""
        try:
            self._link.Iprobe(source=1, tag=_READY)
        except MPI.Exception:
            return True
        return self._link.Get_failed().Get_size() > 0

    def call(self, value: object) -> None:
        """Tell it something; never waits."""
        data = np.frombuffer(to_bytes(value), np.uint8).copy()
        with contextlib.suppress(MPI.Exception):  # it is lost: the others notice, too
            self._sent.append((self._link.Isend(data, dest=1, tag=_CALL), data))

    def dismiss(self) -> None:
        """Let it end: it is not needed."""
        self.call(None)

    def merge(self, world: ElasticWorld) -> MPI.Comm:
        return _merge(world.comm, self._link, 1)


def admit(world: ElasticWorld, newcomer: Newcomer | None, more: int) -> ElasticWorld:
    """The world with one more rank, the last; all ranks call it, and rank 0 brings the newcomer,
    which takes part in so many `more` calls.

    All ranks are in the new world, or none: then they raise RanksLost, and the newcomer ends.
    """
    if newcomer is not None:
        newcomer.call((world.generation.number, more))
    try:
        merged = _merge(world.comm, MPI.COMM_SELF, 1) if newcomer is None else newcomer.merge(world)
    except MPI.Exception:
        merged = None
        world.generation.end()
    entered = world.change_to(merged)
    if newcomer is not None:
        newcomer.call(_WELCOME)
    return entered


class Entrance:
    """The way into a running job, for a process that was started to join it."""

    def __init__(self) -> None:
        self._link = MPI.Comm.Get_parent().Merge(high=True)
        self._link.Set_errhandler(MPI.ERRORS_RETURN)

    def enter(self, own: ElasticWorld) -> tuple[ElasticWorld, int]:
        """Say that this process is ready, and wait until it is in; the world, and how many more
        are taken in after it. RanksLost if the job has ended, or has changed meanwhile."""
        try:
            self._link.Send(np.zeros(1, np.uint8), dest=0, tag=_READY)
            number, more = self._hear(None)
            entered = ElasticWorld(_merge(own.comm, self._link, 0), Generation(number))
            self._hear(_ANSWER_S)
            return entered, more
        except MPI.Exception:
            raise RanksLost("the job that this process was to join has ended, or changed") from None

    def _hear(self, longest_s: float | None) -> tuple[int, int]:
        """What rank 0 says next."""
        end, status = None if longest_s is None else time.monotonic() + longest_s, MPI.Status()

        def has_come() -> bool:
            if end is not None and time.monotonic() > end:
                raise RanksLost("the job that this process was to join does not answer")
            return bool(self._link.Iprobe(source=0, tag=_CALL, status=status))

        wait_until(has_come, _POLL_S)
        data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        self._link.Recv(data, source=0, tag=_CALL)
        heard: tuple[int, int] | None = from_bytes(data.tobytes())
        if heard is None:
            raise RanksLost("this process is not needed any more")
        return heard


def _merge(own: MPI.Intracomm, link: MPI.Intracomm, other: int) -> MPI.Intracomm:
    """One communicator of two, whose first ranks reach each other by a link."""
    between = own.Create_intercomm(0, link, other, _MERGE)
    return between.Merge(high=other == 0)
