"""The World: what a rank can ask of the others. Three small files implement it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Buffer = npt.NDArray[Any]
"""A contiguous array; it travels as it lies in memory."""

T = TypeVar("T")

ANY_RANK = -1
"""As the source of `receive`: whoever sends first."""


class Received(NamedTuple):
    """Where a message came from."""

    source: int
    tag: int


class Pending(Protocol):
    """A message on its way; keep it until it is done."""

    source: int
    """Who sent it; for a receive known when it is done."""

    def done(self) -> bool:
        """Whether it has arrived or left; never waits."""

    def cancel(self) -> None:
        """Take a receive back that nobody will answer; `done` then says whether it came before."""


class NodeMemory(Protocol):
    """Zeroed memory that all ranks of one node see, and locks that guard it."""

    bytes: npt.NDArray[np.uint8]
    """The memory; it begins on a page of its own."""

    def hold(self, lock: int) -> AbstractContextManager[None]:
        """Keep others out of what this lock guards; waiting sleeps. Not to be taken twice."""

    def close(self) -> None:
        """Give it back, for this rank; views of the memory stay valid until they are dropped."""


class World(Protocol):
    """All ranks, seen from one of them.

    Whatever waits for other ranks is a method; attributes are facts of this rank. Buffers are
    contiguous arrays that are read and written in place; small plain values go through
    `bcast_value` and `allgather_values`, which encode them (see values.py); never tensors.
    """

    rank: int
    size: int
    node: str
    """The name of the machine this rank runs on."""
    node_ranks: tuple[int, ...]
    """The ranks that share memory with this one, itself included."""
    thread_multiple: bool
    """Whether several threads of this rank may talk to other ranks at the same time."""

    poll_interval_s: float | None
    """Set it, and barriers and sums look now and then, with sleeps of up to so many seconds in
    between: for threads that others compute beside, and for ranks that outnumber the cores. None
    leaves waiting to MPI, which burns a core and loses no microsecond."""

    def broadcast(self, buffer: Buffer, root: int = 0) -> None:
        """Overwrite every rank's buffer by the root's."""

    def all_reduce(self, buffer: Buffer) -> None:
        """Overwrite every rank's buffer by the sum over all ranks."""

    def make_buffer(self, size: int, dtype: npt.DTypeLike) -> Buffer:
        """Zeroed memory that `all_reduce` sums without copies; all ranks ask together."""

    def drop_buffer(self, buffer: Buffer) -> None:
        """Let go of memory that `make_buffer` gave; views of it stay valid."""

    def all_to_all(self, send: Buffer, receive: Buffer) -> None:
        """Piece i of `send` goes to rank i; piece j of `receive` came from rank j; all as long."""

    def send(self, buffer: Buffer, to: int, tag: int = 0) -> None:
        """Send to one rank; the buffer may be used again on return."""

    def receive(self, buffer: Buffer, source: int = ANY_RANK, tag: int = 0) -> Received:
        """Wait for a message of that tag and write it into the buffer."""

    def irecv(self, buffer: Buffer, source: int = ANY_RANK, tag: int = 0) -> Pending:
        """Post a receive: the message will be written into the buffer.

        A shorter message fills its beginning; a longer one must not come (between two ranks it is
        a WorldError). Receives that match the same messages get them in the order of posting.
        """

    def isend(self, buffer: Buffer, to: int, tag: int = 0) -> Pending:
        """Start a send, to oneself, too; the buffer must not be touched before it is done.

        A posted message is one piece: on MPI it has at most 2^31 - 1 elements.
        """

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def bcast_value(self, value: T, root: int = 0) -> T:
        """The root's small value, on every rank."""

    def allgather_values(self, value: T) -> list[T]:
        """Every rank's small value, in rank order, on every rank."""

    def node_memory(self, nbytes: int, locks: int = 1) -> NodeMemory:
        """Memory in common with the ranks of this node; all ranks of the world ask together.

        If one of them cannot have it, all get the same WorldError.
        """

    def raise_if_failed(self) -> None:
        """Raise if another rank has failed, for who waits without asking anybody; never waits."""

    def split(self, colour: int) -> World:
        """A world of the ranks that gave the same colour, in the same order."""

    def free(self) -> None:
        """Give back what a world made by `split` holds, which is not used any more; all its ranks
        call it together."""

    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks at once with this non-zero exit code."""


def check_buffer(buffer: Buffer) -> Buffer:
    """A buffer must be one piece of memory: a copy made on the way would get the result."""
    if not isinstance(buffer, np.ndarray) or not buffer.flags.c_contiguous:
        raise TypeError("a buffer must be a contiguous numpy array")
    return buffer


def check_pieces(send: Buffer, receive: Buffer, size: int) -> None:
    """What `all_to_all` needs: as much goes as comes, in a piece for each rank."""
    if check_buffer(send).dtype != check_buffer(receive).dtype:
        raise TypeError(f"sends {send.dtype}, but receives {receive.dtype}")
    if send.size != receive.size or send.size % size:
        raise ValueError(
            f"{send.size} elements to send and {receive.size} to receive are not one equal piece "
            f"for each of {size} ranks"
        )
