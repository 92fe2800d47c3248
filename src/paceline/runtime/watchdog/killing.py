"""Kill ranks that hang, so that the others go on without them.

A process that is stopped cannot do it itself, so a rank on its node does: the one that judges, or
one that gets its order.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline.comm import Pending, World

_ORDER = 1
"""The tag of orders to kill a process."""


class Process(NamedTuple):
    """A rank's process; when it was started tells it from another that has got its pid."""

    node: str
    pid: int
    began: int


def own_process(node: str) -> Process:
    return Process(node, os.getpid(), _began(os.getpid()))


def kill(process: Process) -> None:
    """Kill a process of this node."""
    if _began(process.pid) == process.began:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)


def _began(pid: int) -> int:
    """In ticks since the machine was started; -1 if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    return int(text.rpartition(")")[2].split()[19])


class Killer:
    """On a rank that judges: ends ranks that hang."""

    def __init__(self, world: World, processes: Sequence[Process]) -> None:
        self._world, self._processes = world, processes
        self._orders: list[tuple[Pending, object]] = []

    def kill(self, rank: int, by: int) -> None:
        """Kill that rank; `by`: a rank of its node that is alive."""
        if by == self._world.rank:
            kill(self._processes[rank])
            return
        order = np.array(self._processes[rank][1:], np.int64)
        self._orders.append((self._world.isend(order, by, _ORDER), order))


class Orders:
    """On the other ranks: orders to kill a process of this node."""

    def __init__(self, world: World) -> None:
        self._world, self._buffer = world, np.zeros(2, np.int64)
        self._arriving = world.irecv(self._buffer, tag=_ORDER)

    def obey(self) -> None:
        while self._arriving.done():
            pid, began = map(int, self._buffer)
            kill(Process("", pid, began))
            self._arriving = self._world.irecv(self._buffer, tag=_ORDER)

    def close(self) -> None:
        self._arriving.cancel()
