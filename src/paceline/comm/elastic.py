"""A world of MPI that outlives its ranks, by ULFM (MPI's user-level failure mitigation).

A world has a generation. When ranks are lost, every call of those that are left raises RanksLost,
sooner or later; then all of them call `next_world`, which ends the generation and begins the next.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

import numpy as np
from mpi4py import MPI

from paceline.comm.mpi import MPIWorld
from paceline.comm.polling import Backoff
from paceline.errors import PacelineError, RanksLost, WorldError

P = ParamSpec("P")
T = TypeVar("T")

_NEWS_S = 3.0
"""How long the news of a lost rank may take after an error that it has caused."""
_UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, MemoryError)
_LOSSES = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)


class Generation:
    """The communicators of one generation. They end together."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self._worlds: WeakSet[ElasticWorld] = WeakSet()
        self._revoked = False

    def add(self, world: ElasticWorld) -> None:
        self._worlds.add(world)

    def remove(self, world: ElasticWorld) -> None:
        self._worlds.discard(world)

    def end(self) -> None:
        """Let every rank that waits in one of the communicators know: its call raises.

        A rank may wait for one that waits in another communicator, so all of them are revoked.
        """
        if not self._revoked:
            self._revoked = True
            for world in list(self._worlds):
                world.revoke()

    def explain(self, error: MPI.Exception) -> PacelineError:
        """The error to raise for one of MPI.

        A nonblocking collective may report MPI_ERR_OTHER before it is known that a rank is gone.
        """
        if error.Get_error_class() in _LOSSES or self.has_losses_soon():
            return self.lose()
        return WorldError(f"MPI failed: {error}")

    def lose(self) -> RanksLost:
        """End the generation; the error to raise."""
        self.end()
        return RanksLost("ranks were lost, and this program cannot go on without them")

    def has_losses_soon(self) -> bool:
        """Whether the news of a lost rank is here, or comes in a moment."""
        end = time.monotonic() + _NEWS_S
        while not self.has_losses():
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True

    def has_losses(self) -> bool:
        """Whether a rank is known to be lost, here or by another rank."""
        return any(world.has_losses() for world in list(self._worlds))


def _noticing(
    method: Callable[Concatenate[ElasticWorld, P], T],
) -> Callable[Concatenate[ElasticWorld, P], T]:
    """Raise RanksLost where a rank is lost, or another rank has noticed one.

    Open MPI 5.0.11 may return from a collective call as if all were well, with numbers that never
    arrived. So a loss that is known afterwards counts, and so does one behind unreadable values.
    """

    @functools.wraps(method)
    def call(self: ElasticWorld, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            found = method(self, *args, **kwargs)
        except MPI.Exception as error:
            raise self.generation.explain(error) from None
        except _UNREADABLE:
            if self.generation.has_losses_soon():
                raise self.generation.lose() from None
            raise
        if self.knows_losses():
            raise self.generation.lose()
        return found

    return call


class ElasticWorld(MPIWorld):
    """One rank of a communicator whose ranks may be lost."""

    elastic = True

    def __init__(self, comm: MPI.Comm, generation: Generation | None = None) -> None:
        self.generation = generation or Generation()
        self.generation_number = self.generation.number
        self.successor: ElasticWorld | None = None
        """The world that came after this one, since ranks were lost."""
        self._is_decided = False
        """Whether all ranks have said if they go on in this world."""
        try:
            super().__init__(comm)
        except MPI.Exception as error:
            comm.Revoke()  # others may wait in it
            raise self.generation.explain(error) from None
        self.generation.add(self)

    @property
    def comm(self) -> MPI.Intracomm:
        """For the modules of this package."""
        assert isinstance(self._comm, MPI.Intracomm)
        return self._comm

    def _find_node_ranks(self) -> tuple[int, ...]:
        """Open MPI 5.0.11 does not know where ranks are that have joined from another job of it."""
        nodes = np.empty(self.size, np.int64)
        self._comm.Allgather(np.array([_identify_node(self.node)]), nodes)
        return tuple(np.flatnonzero(nodes == nodes[self.rank]).tolist())

    def revoke(self) -> None:
        if self._comm != MPI.COMM_NULL:
            self._comm.Revoke()

    def next_world(self) -> ElasticWorld:
        """The world of the ranks that are left; all of them call it."""
        self.generation.end()
        if not self._is_decided:  # others may ask us, and must not wait
            self._agree(self._comm, False)
        comm, number = self._comm, self.generation.number
        while True:
            comm, number = comm.Shrink(), number + 1
            made = self._make_next(comm, Generation(number))
            if self._agree(comm, made is not None) and made is not None:
                return made

    def without(self, leaving: Container[int]) -> ElasticWorld:
        """The world without ranks that leave it, for these the world of those; all call it."""
        try:
            comm = self._comm.Split(int(self.rank in leaving), self.rank)
        except MPI.Exception:
            comm = None
        return self.change_to(comm)

    def change_to(self, comm: MPI.Comm | None) -> ElasticWorld:
        """The world of another communicator, in place of this one; None: this rank has not got it.
        All ranks change, or none: then they raise RanksLost."""
        generation = Generation(self.generation.number)
        made = None if comm is None else self._make_next(comm, generation)
        self._is_decided = True
        if not self._agree(self._comm, made is not None) or made is None:
            raise self.generation.lose()
        return made

    def confirm(self) -> None:
        """All ranks have come this far, or none has: then they raise RanksLost."""
        self._is_decided = True
        if not self._agree(self._comm, True):
            raise self.generation.lose()

    def _make_next(self, comm: MPI.Comm, generation: Generation) -> ElasticWorld | None:
        """None if a rank was lost meanwhile."""
        try:
            world = ElasticWorld(comm, generation)
        except RanksLost:
            return None
        world.poll_interval_s = self.poll_interval_s
        return world

    @staticmethod
    def _agree(comm: MPI.Comm, yes: bool) -> bool:
        """Whether all ranks say yes, the same answer on all of them: no, if one is lost."""
        try:
            return bool(comm.Agree(int(yes)))
        except MPI.Exception:
            return False

    def raise_if_failed(self) -> None:
        """Raise RanksLost if a rank is lost, or another rank has noticed one."""
        if self.has_losses():
            raise self.generation.lose()

    def has_losses(self) -> bool:
        """Whether a rank of this communicator is known to be lost, here or by another rank."""
        if self._comm == MPI.COMM_NULL:
            return False
        try:
            self._comm.Iprobe()  # lets MPI take in what it has been told
        except MPI.Exception as error:
            return error.Get_error_class() in _LOSSES
        return self.knows_losses()

    def knows_losses(self) -> bool:
        """The same, as far as MPI has taken it in."""
        return bool(self._comm.Is_revoked()) or self._comm.Get_failed().Get_size() > 0

    def part(self, longest_s: float) -> None:
        """Wait until all ranks come here, but no longer than this."""
        end = time.monotonic() + longest_s
        with contextlib.suppress(MPI.Exception):
            request, backoff = self._comm.Ibarrier(), Backoff()
            while not request.Test() and time.monotonic() < end:
                backoff.pause()

    def free(self) -> None:
        self.generation.remove(self)
        super().free()

    def _make(self, comm: MPI.Comm) -> ElasticWorld:
        return ElasticWorld(comm, self.generation)

    def _explain(self, error: MPI.Exception) -> PacelineError:
        return self.generation.explain(error)

    broadcast = _noticing(MPIWorld.broadcast)
    all_reduce = _noticing(MPIWorld.all_reduce)
    barrier = _noticing(MPIWorld.barrier)
    split = _noticing(MPIWorld.split)
    bcast_value = _noticing(MPIWorld.bcast_value)
    allgather_values = _noticing(MPIWorld.allgather_values)
    irecv = _noticing(MPIWorld.irecv)
    isend = _noticing(MPIWorld.isend)
    node_memory = _noticing(MPIWorld.node_memory)


def _identify_node(name: str) -> int:
    """A number that processes have in common which share memory: a machine since it was started,
    and what is mounted there for it."""
    with contextlib.suppress(OSError):
        name += Path("/proc/sys/kernel/random/boot_id").read_text()
        name += str(Path("/dev/shm").stat().st_dev)
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])


def elastic_world_of_mpi() -> ElasticWorld:
    """All ranks that the launcher started, on a communicator of our own."""
    return ElasticWorld(MPI.COMM_WORLD.Dup())
