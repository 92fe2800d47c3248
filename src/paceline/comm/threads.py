"""Many ranks in one process, one thread each: for tests and simulations.

    def program(world):
        x = np.full(3, float(world.rank))
        world.all_reduce(x)
        return x

    results = run_world(4, program)

A rank that raises ends the others: they get a WorldError where they wait.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar, cast

import numpy as np
import numpy.typing as npt

from paceline.comm.mailbox import CompletedSend, Mailbox
from paceline.comm.node_memory import ProcessMemory, reserve
from paceline.comm.values import from_bytes, to_bytes
from paceline.comm.world import ANY_RANK, Buffer, NodeMemory, Pending, T, check_buffer
from paceline.core.vectors import aligned_zeros
from paceline.errors import WorldError

R = TypeVar("R")

current_world: contextvars.ContextVar[ThreadWorld | None] = contextvars.ContextVar(
    "current_world", default=None
)
"""The world of the calling thread, for code that was not given one."""


class _Hub:
    """What the threads of one world share."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.slots: list[object] = [None] * size
        self.mailboxes = [Mailbox(rank) for rank in range(size)]
        self.failure: str | None = None
        self.failing = threading.Lock()
        self.parts: list[_Hub] = []

    def fail(self, reason: str) -> None:
        """Wake every waiting rank with the reason; the first reason stays."""
        with self.failing:
            self.failure = self.failure or reason
        for mailbox in self.mailboxes:
            mailbox.close(self.failure)
        self.barrier.abort()
        for part in self.parts:
            part.fail(reason)


class ThreadWorld:
    """One rank of a world of threads."""

    node = "threads"
    elastic = False
    generation_number = 0
    thread_multiple = True
    poll_interval_s: float | None = None

    def __init__(self, rank: int, size: int, hub: _Hub) -> None:
        self.rank, self.size = rank, size
        self.node_ranks: tuple[int, ...] = tuple(range(size))
        self._hub = hub

    def barrier(self) -> None:
        try:
            self._hub.barrier.wait()
        except threading.BrokenBarrierError:
            raise WorldError(self._hub.failure or "another rank left") from None

    def allgather_values(self, value: T) -> list[T]:
        return [from_bytes(data) for data in self._gather_objects(to_bytes(value))]

    def _gather_objects(self, value: T) -> list[T]:
        """Every rank's object itself, not a copy."""
        self._hub.slots[self.rank] = value
        self.barrier()
        values = cast("list[T]", list(self._hub.slots))
        self.barrier()  # nobody may overwrite a slot that another rank has yet to read
        return values

    def bcast_value(self, value: T, root: int = 0) -> T:
        data = self._gather_objects(to_bytes(value) if self.rank == root else b"")[root]
        return value if self.rank == root else from_bytes(data)

    def broadcast(self, buffer: Buffer, root: int = 0) -> None:
        source = self._expose(buffer)[root]
        if self.rank != root:
            buffer[...] = source
        self.barrier()

    def all_reduce(self, buffer: Buffer) -> None:
        buffers = self._expose(buffer)
        total = buffers[0].copy()
        for other in buffers[1:]:
            total += other
        self.barrier()
        buffer[...] = total

    def _expose(self, buffer: Buffer) -> list[Buffer]:
        """Every rank's buffer itself; pass a barrier before you write to any of them."""
        self._hub.slots[self.rank] = check_buffer(buffer)
        self.barrier()
        return cast("list[Buffer]", list(self._hub.slots))

    def make_buffer(self, size: int, dtype: npt.DTypeLike) -> Buffer:
        return aligned_zeros(size, dtype)

    def drop_buffer(self, buffer: Buffer) -> None:
        return None

    def irecv(self, buffer: Buffer, source: int = ANY_RANK, tag: int = 0) -> Pending:
        return self._hub.mailboxes[self.rank].post(buffer, source, tag)

    def isend(self, buffer: Buffer, to: int, tag: int = 0) -> Pending:
        self._hub.mailboxes[to].deliver(self.rank, buffer, tag)
        return CompletedSend(self.rank)

    def node_memory(self, nbytes: int, locks: int = 1) -> NodeMemory:
        lowest = min(self.node_ranks)
        reserved: tuple[npt.NDArray[np.uint8], list[threading.Lock]] | str | None = None
        if self.rank == lowest:
            try:
                reserved = reserve(nbytes, locks)
            except WorldError as error:
                reserved = str(error)
        all_reserved = self._gather_objects(reserved)
        problems = [text for text in all_reserved if isinstance(text, str)]
        if problems:
            raise WorldError(problems[0])
        mine = all_reserved[lowest]
        assert isinstance(mine, tuple)
        return ProcessMemory(*mine)

    def raise_if_failed(self) -> None:
        if self._hub.failure:
            raise WorldError(self._hub.failure)

    def split(self, colour: int) -> ThreadWorld:
        colours = self.allgather_values(colour)
        members = [rank for rank, other in enumerate(colours) if other == colour]
        hub = _Hub(len(members))
        if self.rank == members[0]:  # so that a failure reaches whoever waits in the part
            self._hub.parts.append(hub)
        hub = self._gather_objects(hub)[members[0]]
        part = ThreadWorld(members.index(self.rank), len(members), hub)
        part.poll_interval_s = self.poll_interval_s
        return part

    def free(self) -> None:
        """Nothing to release."""

    def abort(self, code: int = 1) -> NoReturn:
        reason = f"rank {self.rank} aborted the world with code {code}"
        self._hub.fail(reason)
        raise WorldError(reason)


def run_world(size: int, program: Callable[[ThreadWorld], R], timeout_s: float = 60.0) -> list[R]:
    """Run `program(world)` as `size` ranks; return their results in rank order, or raise the first
    error."""
    hub = _Hub(size)
    results: dict[int, R] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        world = ThreadWorld(rank, size, hub)
        current_world.set(world)
        try:
            results[rank] = program(world)
        except BaseException as error:
            errors.append(error)
            hub.fail(f"rank {rank} failed: {type(error).__name__}: {error}")

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank-{rank}", daemon=True)
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    if late:
        hub.fail("time is up")
        raise WorldError(f"ranks {late} still ran after {timeout_s} s")
    if errors:  # a rank that was woken by another's failure is not the cause
        raise next((e for e in errors if not isinstance(e, WorldError)), errors[0])
    return [results[rank] for rank in range(size)]
