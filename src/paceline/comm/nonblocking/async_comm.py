"""Nonblocking communication: calls start an exchange and return requests to test later.

A World blocks inside its calls. Here a generator starts requests and yields until they are done,
so that one thread keeps many exchanges in progress (`progress.py`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from paceline.comm.world import ANY_RANK, Buffer
from paceline.errors import WorldError

if TYPE_CHECKING:
    from paceline.comm.nonblocking.node_allreduce import AsyncNodeAllreduce

ReduceOpName = Literal["sum", "product", "min", "max", "and", "or", "xor"]
"""How values of several ranks are reduced to one; the last three are bitwise."""


class Request(Protocol):
    """A nonblocking call of MPI in progress."""

    def Test(self) -> bool:
        """Whether it is done; never waits."""


Requests = Sequence[Request]

T = TypeVar("T")
Steps = Generator[bool, None, T]
"""Work in steps: yields whenever it has to wait, True if it made progress since the last time."""

MAX_ELEMENTS = 2**30
"""Elements per call of MPI: its counts are 32-bit, and so are sums of them."""


class PendingReceive(Protocol):
    """A posted receive."""

    source: int
    """The sender; known when it is done."""
    nbytes: int
    """The length of the message; known when it is done."""

    def done(self) -> bool:
        """Whether the message has arrived; never waits."""

    def cancel(self) -> None:
        """Withdraw the receive."""


class AsyncComm(Protocol):
    """The ranks of a group, numbered from 0. Buffers are contiguous arrays, in use until done.

    All ranks start collectives in the same order. Only messages are limited in length.
    """

    rank: int
    size: int
    longest: int
    """Elements per call of MPI; longer buffers take several calls."""

    def wait_for_all(self, requests: Requests) -> Steps[None]:
        """Steps that end when all requests are done."""

    def broadcast(self, buffer: Buffer, root: int) -> Requests:
        """Overwrite every rank's buffer with the root's."""

    def all_reduce(self, buffer: Buffer, how: ReduceOpName) -> Requests:
        """Overwrite every rank's buffer with the reduction over all ranks."""

    def reduce(self, buffer: Buffer, how: ReduceOpName, root: int) -> Requests:
        """Overwrite the root's buffer with the reduction; the others keep theirs."""

    def all_gather(self, piece: Buffer, whole: Buffer) -> Requests:
        """Concatenate every rank's piece, all equally long; at most `longest` in total."""

    def reduce_scatter(
        self, whole: Buffer, piece: Buffer, sizes: Sequence[int], how: ReduceOpName
    ) -> Requests:
        """Give each rank its part, of these sizes, of the reduction; at most `longest` in total."""

    def barrier(self) -> Requests:
        """Done when every rank has called it."""

    def send(self, buffer: Buffer, to: int, tag: int) -> Requests:
        """Send a message; a rank may send to itself."""

    def receive(self, buffer: Buffer, source: int, tag: int) -> PendingReceive:
        """Post a receive for a message with this tag from that rank, or from ANY_RANK."""

    def close(self) -> None:
        """Free it; nothing may be in progress."""


@dataclass(frozen=True)
class AsyncComms:
    """The communicators of a group; traffic on one never matches traffic on another."""

    collective_comm: AsyncComm
    message_comm: AsyncComm
    node_allreduce: AsyncNodeAllreduce | None
    """The sum through node memory; None if every rank is alone on its node."""
    callback_comms: AsyncComms | None = None
    """For collectives started by callbacks: ranks start them in one order among themselves, but
    interleave them with the program's own differently."""

    def close(self) -> None:
        """Free all of them; nothing may be in progress."""
        if self.node_allreduce is not None:
            self.node_allreduce.close()
        if self.callback_comms is not None:
            self.callback_comms.close()
        if self.message_comm is not self.collective_comm:
            self.message_comm.close()
        self.collective_comm.close()


def solo_comms() -> AsyncComms:
    """The communicators of a single rank."""
    both = SoloAsyncComm()
    return AsyncComms(both, both, None)


class SoloAsyncComm:
    """The communicator of a single rank, without MPI: a message is kept until it is received."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.longest = MAX_ELEMENTS
        self._unreceived: defaultdict[int, deque[Buffer]] = defaultdict(deque)
        self._posted: defaultdict[int, deque[_SoloReceive]] = defaultdict(deque)

    def wait_for_all(self, requests: Requests) -> Steps[None]:
        yield from ()

    def broadcast(self, buffer: Buffer, root: int) -> Requests:
        return ()

    def all_reduce(self, buffer: Buffer, how: ReduceOpName) -> Requests:
        return ()

    def reduce(self, buffer: Buffer, how: ReduceOpName, root: int) -> Requests:
        return ()

    def all_gather(self, piece: Buffer, whole: Buffer) -> Requests:
        whole[:] = piece
        return ()

    def reduce_scatter(
        self, whole: Buffer, piece: Buffer, sizes: Sequence[int], how: ReduceOpName
    ) -> Requests:
        piece[:] = whole
        return ()

    def barrier(self) -> Requests:
        return ()

    def send(self, buffer: Buffer, to: int, tag: int) -> Requests:
        self._unreceived[tag].append(buffer.copy())
        self._match(tag)
        return ()

    def receive(self, buffer: Buffer, source: int, tag: int) -> PendingReceive:
        pending = _SoloReceive(buffer, self._posted[tag])
        self._posted[tag].append(pending)
        self._match(tag)
        return pending

    def _match(self, tag: int) -> None:
        unreceived, posted = self._unreceived[tag], self._posted[tag]
        while unreceived and posted:
            posted.popleft().fill(unreceived.popleft())

    def close(self) -> None:
        self._unreceived.clear()
        self._posted.clear()


class _SoloReceive:
    def __init__(self, buffer: Buffer, queue: deque[_SoloReceive]) -> None:
        self.source, self.nbytes = ANY_RANK, 0
        self._buffer, self._queue = buffer, queue

    def fill(self, message: Buffer) -> None:
        if message.nbytes > self._buffer.nbytes:
            raise too_long(0, self._buffer.nbytes)
        self._buffer[: message.size] = message
        self.source, self.nbytes = 0, message.nbytes

    def done(self) -> bool:
        return self.source == 0

    def cancel(self) -> None:
        if self in self._queue:
            self._queue.remove(self)


def too_long(source: int, expected_bytes: int) -> WorldError:
    """The error for a message that is longer than its receive buffer."""
    return WorldError(
        f"the message from rank {source} is longer than the {expected_bytes} bytes expected; "
        "the tensors of both ranks must have the same size and type"
    )
