"""The World: how a rank communicates with the others. Three modules implement it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from paceline.core.vectors import Vector

Buffer = Vector
"""A contiguous array; it is sent as it lies in memory."""

T = TypeVar("T")

ANY_RANK = -1
"""As the source of `irecv`: whichever rank sends first."""


class Pending(Protocol):
    """A message in transit; keep a reference to it until it is done."""

    source: int
    """The sender; of a receive known when it is done."""

    def done(self) -> bool:
        """Whether it was received, or may be overwritten; never waits."""

    def cancel(self) -> None:
        """Withdraw a receive; afterwards `done` says whether its message had arrived before."""


class NodeMemory(Protocol):
    """Zeroed memory shared by the ranks of one node, and locks to guard it."""

    bytes: npt.NDArray[np.uint8]
    """The memory; it starts on a page boundary."""

    def hold(self, lock: int) -> AbstractContextManager[None]:
        """Hold a lock, waiting for it asleep. Not reentrant."""

    def close(self) -> None:
        """Release it for this rank; views of the memory stay valid until they are dropped."""


class World(Protocol):
    """All ranks, seen from one of them.

    Methods may wait for other ranks; attributes are facts about this rank. Buffers are contiguous
    arrays that are read and written in place. `bcast_value` and `allgather_values` take small
    plain values and encode them (see values.py); tensors never go through them.
    """

    rank: int
    size: int
    node: str
    """The name of this rank's machine."""
    node_ranks: tuple[int, ...]
    """The ranks that share memory with this one, itself included."""
    elastic: bool
    """Whether it outlives its ranks: then calls raise RanksLost when some are gone."""
    generation_number: int
    """How often some were gone."""
    thread_multiple: bool
    """Whether several threads of this rank may communicate at the same time."""

    poll_interval_s: float | None
    """If set, barriers and sums poll and sleep up to this long in between: for threads that share
    their core with computation, and for nodes with more ranks than cores. None leaves waiting to
    MPI, which keeps a core busy and reacts within a microsecond."""

    def broadcast(self, buffer: Buffer, root: int = 0) -> None:
        """Overwrite every rank's buffer with the root's."""

    def all_reduce(self, buffer: Buffer) -> None:
        """Overwrite every rank's buffer with the sum over all ranks."""

    def make_buffer(self, size: int, dtype: npt.DTypeLike) -> Buffer:
        """Zeroed memory that `all_reduce` sums without copies; collective."""

    def drop_buffer(self, buffer: Buffer) -> None:
        """Release memory of `make_buffer`; views of it stay valid."""

    def irecv(self, buffer: Buffer, source: int = ANY_RANK, tag: int = 0) -> Pending:
        """Post a receive: the message will be written to the buffer.

        A shorter message fills the beginning of the buffer; a longer one is an error (a WorldError
        if it comes from another rank). Receives that match the same messages get them in the order
        in which they were posted.
        """

    def isend(self, buffer: Buffer, to: int, tag: int = 0) -> Pending:
        """Start to send; do not touch the buffer before it is done. A rank may send to itself.

        A message is never divided: on MPI it has at most 2^31 - 1 elements.
        """

    def barrier(self) -> None:
        """Wait until every rank has called it."""

    def bcast_value(self, value: T, root: int = 0) -> T:
        """The root's small value, on every rank."""

    def allgather_values(self, value: T) -> list[T]:
        """Every rank's small value, in rank order, on every rank."""

    def node_memory(self, nbytes: int, locks: int = 1) -> NodeMemory:
        """Memory shared with the ranks of this node; collective over the whole world.

        If one rank cannot get it, all ranks raise the same WorldError.
        """

    def raise_if_failed(self) -> None:
        """Raise if another rank has failed; never waits. For loops that wait without calling."""

    def split(self, colour: int) -> World:
        """A world of the ranks with the same colour, in the same order."""

    def free(self) -> None:
        """Release what a world made by `split` holds; all its ranks call it together, last."""

    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks at once with this non-zero exit code."""


def check_buffer(buffer: Buffer) -> Buffer:
    """Refuse arrays that are not contiguous: the result would be written to a copy."""
    if not isinstance(buffer, np.ndarray) or not buffer.flags.c_contiguous:
        raise TypeError("a buffer must be a contiguous numpy array")
    return buffer
