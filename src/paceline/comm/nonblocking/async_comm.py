"""A line: what ranks exchange by calls that only start it, and that are looked at later.

A World waits inside its calls. Here a call gives back requests, and a generator that started them
yields until they are done, so that one thread can keep many exchanges under way (`progress.py`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Sequence
from typing import Any, Literal, Protocol, TypeVar

from paceline.comm.world import ANY_RANK, Buffer
from paceline.errors import WorldError

ReduceOpName = Literal["sum", "product", "min", "max", "and", "or", "xor"]
"""How numbers of several ranks become one; the last three are of bits."""

Requests = Sequence[Any]

T = TypeVar("T")
Steps = Generator[bool, None, T]
"""Work in steps: it yields whenever it cannot go on now, and True if it got on since last time."""

MAX_ELEMENTS = 2**30
"""Elements per call of MPI: its counts are 32-bit, and so are sums of them."""


class PendingReceive(Protocol):
    """A message that is expected."""

    source: int
    nbytes: int
    """Who sent it, and how long it was; known when it is done."""

    def done(self) -> bool:
        """Whether it has come; never waits."""

    def cancel(self) -> None:
        """Expect it no longer."""


class AsyncComm(Protocol):
    """The ranks of a group, numbered from 0. Buffers are contiguous arrays, used until done.

    Collectives are started in the same order on all ranks. All but messages may be of any length.
    """

    rank: int
    size: int
    longest: int
    """Elements that go in one call of MPI; longer buffers go in several."""

    def until(self, requests: Requests) -> Steps[None]:
        """Steps that end when all of these are done."""

    def broadcast(self, buffer: Buffer, root: int) -> Requests:
        """Overwrite every rank's buffer by the root's."""

    def all_reduce(self, buffer: Buffer, how: ReduceOpName) -> Requests:
        """Overwrite every rank's buffer by what all of them make together."""

    def reduce(self, buffer: Buffer, how: ReduceOpName, root: int) -> Requests:
        """The same for the root's buffer alone; the others stay as they are."""

    def all_gather(self, piece: Buffer, whole: Buffer) -> Requests:
        """Every rank's piece, equally long, one after the other; together at most `longest`."""

    def reduce_scatter(
        self, whole: Buffer, piece: Buffer, sizes: Sequence[int], how: ReduceOpName
    ) -> Requests:
        """Each rank's part, of these sizes, of what all wholes make; together at most `longest`."""

    def barrier(self) -> Requests:
        """Done when every rank is here."""

    def send(self, buffer: Buffer, to: int, tag: int) -> Requests:
        """A message; to oneself, too."""

    def receive(self, buffer: Buffer, source: int, tag: int) -> PendingReceive:
        """Expect a message of that tag, from that rank or from ANY_RANK."""

    def close(self) -> None:
        """Give it back; nothing of it may be under way."""


class SoloAsyncComm:
    """A line of one rank, without MPI: what is sent waits here until it is received."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.longest = MAX_ELEMENTS
        self._mail: defaultdict[int, deque[Buffer]] = defaultdict(deque)
        self._expected: defaultdict[int, deque[_SoloIncoming]] = defaultdict(deque)

    def until(self, requests: Requests) -> Steps[None]:
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
        self._mail[tag].append(buffer.copy())
        self._deliver(tag)
        return ()

    def receive(self, buffer: Buffer, source: int, tag: int) -> PendingReceive:
        incoming = _SoloIncoming(buffer, self._expected[tag])
        self._expected[tag].append(incoming)
        self._deliver(tag)
        return incoming

    def _deliver(self, tag: int) -> None:
        mail, expected = self._mail[tag], self._expected[tag]
        while mail and expected:
            expected.popleft().take(mail.popleft())

    def close(self) -> None:
        self._mail.clear()
        self._expected.clear()


class _SoloIncoming:
    def __init__(self, buffer: Buffer, queue: deque[_SoloIncoming]) -> None:
        self.source, self.nbytes = ANY_RANK, 0
        self._buffer, self._queue = buffer, queue

    def take(self, message: Buffer) -> None:
        if message.nbytes > self._buffer.nbytes:
            raise too_long(0, self._buffer.nbytes)
        self._buffer[: message.size] = message
        self.source, self.nbytes = 0, message.nbytes

    def done(self) -> bool:
        return self.source == 0

    def cancel(self) -> None:
        if self in self._queue:
            self._queue.remove(self)


def too_long(source: int, room: int) -> WorldError:
    """What to raise when more has come than there is room for."""
    return WorldError(
        f"the message that came from rank {source} is longer than the {room} bytes expected; "
        "the tensors of both ranks must have the same size and type"
    )


def cut(buffer: Buffer, longest: int) -> list[Buffer]:
    """A buffer in pieces that are short enough for one call.

    >>> import numpy as np
    >>> [piece.tolist() for piece in cut(np.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    if buffer.size <= longest:
        return [buffer]
    return [buffer[at : at + longest] for at in range(0, buffer.size, longest)]
