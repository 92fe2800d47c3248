"""An all-reduce between nodes in many short messages, which keep a network busy both ways.

MPI announces a long message and waits for an answer, which queues behind the data that comes the
other way: on 1 Gbit/s Ethernet its all-reduce often uses one direction at a time, half of the rate.
Short messages are sent at once. They are polled now and then, which leaves the core free meanwhile.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from paceline.comm.polling import Backoff
from paceline.comm.wire import BLOCK, Bytes
from paceline.comm.world import Buffer, Pending, World
from paceline.core.chunks import Span, length
from paceline.core.vectors import aligned_zeros

MESSAGE_BYTES = 60 * 1024
"""The longest message: Open MPI announces what exceeds 64 KB with its header."""
AHEAD = 64
"""Messages sent to all peers before the first answer is awaited: about 4 MB, a few times what
10 Gbit/s Ethernet holds in flight."""
LONG_BYTES = 1024 * 1024
"""From this size on it beats MPI's own all-reduce on Ethernet."""
_LONGEST_S = 200e-6  # between two polls: 200 KB at 10 Gbit/s, little compared to AHEAD
_PART, _SUM = 1, 2  # tags


class MessageCodec(Protocol):
    """How parts of a vector are encoded in messages."""

    def nbytes(self, size: int) -> int:
        """Bytes for so many elements."""

    def encode_part(self, part: Buffer, at: int, scratch: Bytes) -> Buffer:
        """The message with this rank's part, which begins at element `at`; may use `scratch`."""

    def encode_sum(self, own: Buffer, at: int, scratch: Bytes) -> Buffer:
        """The message with the sum of a part; `own` becomes what all ranks will read from it."""

    def read(self, message: Bytes, out: Buffer) -> None:
        """Overwrite `out` with the part in the message."""

    def add(self, message: Bytes, out: Buffer) -> None:
        """Add the part in the message to `out`."""


class Uncoded:
    """Messages that are parts of the vector itself."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._itemsize = np.dtype(dtype).itemsize

    def nbytes(self, size: int) -> int:
        return size * self._itemsize

    def encode_part(self, part: Buffer, at: int, scratch: Bytes) -> Buffer:
        return part

    def encode_sum(self, own: Buffer, at: int, scratch: Bytes) -> Buffer:
        return own

    def read(self, message: Bytes, out: Buffer) -> None:
        out[:] = message.view(out.dtype)

    def add(self, message: Bytes, out: Buffer) -> None:
        out += message.view(out.dtype)


class PipelinedAllreduce:
    """Sums vectors over all ranks, each of which is alone on its node.

    The vector is cut into one slice per rank, and a slice into parts of one message each. For each
    part in turn, a rank sends its values to the owner of each slice; sums, in the order of ranks,
    what the others sent for its own slice, and sends them the sum; and receives the sums of the
    other slices. The three run concurrently, each some messages behind the one before.
    """

    def __init__(
        self, world: World, dtype: npt.DTypeLike, codec: MessageCodec | None = None
    ) -> None:
        self._world = world
        self._codec: MessageCodec = codec or Uncoded(dtype)
        self._longest = _longest_part(self._codec)
        self._peers = [rank for rank in range(world.size) if rank != world.rank]
        self._ahead = max(AHEAD // max(len(self._peers), 1), 1)
        self._buffers: Bytes = np.empty((0, 0, 0, 0), np.uint8)
        self._total: Buffer = np.empty(self._longest, dtype)

    def slices(self, size: int) -> list[Span]:
        """Which elements of a vector of this size each rank owns."""
        share = -(-size // self._world.size)
        edges = [min(size, share * rank) for rank in range(self._world.size + 1)]
        return [slice(*pair) for pair in pairwise(edges)]

    def all_reduce(self, vector: Buffer) -> int:
        """Overwrite every rank's vector with the sum; return the bytes sent to other ranks."""
        slices = self.slices(vector.size)
        turns = -(-slices[0].stop // self._longest) if self._peers else 0
        self._make_buffers(min(turns, 2 * self._ahead + 1))
        sent_parts: deque[_Turn] = deque()
        summed: deque[_Turn] = deque()
        sent = 0
        with np.errstate(over="ignore", invalid="ignore"):  # numpy warned where they arose
            for number in range(turns + 2 * self._ahead):
                if number < turns:
                    sent_parts.append(self._send_parts(vector, slices, number))
                if number >= self._ahead and sent_parts:
                    summed.append(self._sum_part(sent_parts.popleft()))
                if number >= 2 * self._ahead and summed:
                    sent += self._read_sums(summed.popleft())
        return sent

    def _make_buffers(self, turns: int) -> None:
        """Memory for messages in transit; untouched memory costs nothing."""
        if turns > len(self._buffers):
            shape = (turns, _USES, len(self._peers), MESSAGE_BYTES)
            self._buffers = aligned_zeros(int(np.prod(shape)), np.uint8).reshape(shape)

    def _send_parts(self, vector: Buffer, slices: list[Span], number: int) -> _Turn:
        """Send the parts of one turn to their owners, and post the receives of the turn."""
        world, codec = self._world, self._codec
        buffers = self._buffers[number % len(self._buffers)]
        parts = [_cut(piece, number, self._longest) for piece in slices]
        turn = _Turn(vector, parts, buffers, [], [], [])
        own = codec.nbytes(length(parts[world.rank]))
        for at, peer in enumerate(self._peers):
            if own:
                turn.parts_in.append(world.irecv(buffers[_PARTS_IN, at, :own], peer, _PART))
            if not length(parts[peer]):
                continue
            message = buffers[_SUMS_IN, at, : codec.nbytes(length(parts[peer]))]
            turn.sums_in.append(world.irecv(message, peer, _SUM))
            part = parts[peer]
            message = codec.encode_part(vector[part], part.start, buffers[_PARTS_OUT, at])
            turn.out.append((message.nbytes, world.isend(message, peer, _PART)))
        return turn

    def _sum_part(self, turn: _Turn) -> _Turn:
        """Sum this rank's own part of the turn, and send it to all."""
        codec, rank = self._codec, self._world.rank
        part = turn.parts[rank]
        if length(part):
            _wait_for(turn.parts_in)
            own = turn.vector[part]
            received = turn.buffers[_PARTS_IN, :, : codec.nbytes(own.size)]
            self._sum_in_order(own, received)
            message = codec.encode_sum(own, part.start, turn.buffers[_SUM_OUT, 0])
            for peer in self._peers:
                turn.out.append((message.nbytes, self._world.isend(message, peer, _SUM)))
        return turn

    def _sum_in_order(self, own: Buffer, received: Bytes) -> None:
        rank = self._world.rank
        if rank < 2:  # a + b is b + a
            for message in received:
                self._codec.add(message, own)
            return
        total = self._total[: own.size]
        self._codec.read(received[0], total)
        for message in received[1:rank]:
            self._codec.add(message, total)
        total += own
        for message in received[rank:]:
            self._codec.add(message, total)
        own[:] = total

    def _read_sums(self, turn: _Turn) -> int:
        """Read the sums of the other ranks' parts; return the bytes sent in this turn."""
        _wait_for([pending for _, pending in turn.out])  # they may be parts of the vector
        _wait_for(turn.sums_in)
        for at, peer in enumerate(self._peers):
            part = turn.vector[turn.parts[peer]]
            if part.size:
                self._codec.read(turn.buffers[_SUMS_IN, at, : self._codec.nbytes(part.size)], part)
        return sum(nbytes for nbytes, _ in turn.out)


class _Turn(NamedTuple):
    """One part of each slice, and its messages."""

    vector: Buffer
    parts: list[Span]
    buffers: Bytes
    parts_in: list[Pending]
    sums_in: list[Pending]
    out: list[tuple[int, Pending]]
    """Bytes and state of each message that this rank sends."""


_USES = 4
_PARTS_OUT, _PARTS_IN, _SUM_OUT, _SUMS_IN = range(_USES)


def _wait_for(messages: list[Pending]) -> None:
    backoff = Backoff(_LONGEST_S, yields=0, shortest_s=_LONGEST_S / 4)
    for message in messages:
        while not message.done():
            backoff.pause()


def _longest_part(codec: MessageCodec) -> int:
    """Elements of the longest part: whole blocks, for formats with a scale per block."""
    return max(
        n for n in range(BLOCK, MESSAGE_BYTES + 1, BLOCK) if codec.nbytes(n) <= MESSAGE_BYTES
    )


def _cut(piece: Span, number: int, longest: int) -> Span:
    start = min(piece.start + number * longest, piece.stop)
    return slice(start, min(start + longest, piece.stop))
