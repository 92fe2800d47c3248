"""An all-reduce between nodes in many short messages, which keep a network busy both ways.

MPI announces a long message and waits for an answer, which queues behind the data that comes the
other way: on 1 Gbit/s Ethernet its all-reduce often gets half of the rate, one way after the other.
Short messages leave at once. They are looked after now and then, so a core is free meanwhile.
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
from paceline.core.vectors import aligned_zeros

MESSAGE_BYTES = 60 * 1024
"""Of the longest message: Open MPI announces what is longer than 64 KB with its head."""
AHEAD = 64
"""Messages to all peers that leave before the first of their answers is waited for: about 4 MB, a
few times what is on the way at once in 10 Gbit/s Ethernet."""
LONG_BYTES = 1024 * 1024
"""From here on it beats MPI's own all-reduce on Ethernet."""
_LONGEST_S = 200e-6  # between two looks: 200 KB at 10 Gbit/s, little beside what leaves ahead
_GIVEN, _SUMMED = 1, 2  # tags


class MessageCodec(Protocol):
    """How parts of a vector lie in messages."""

    def nbytes(self, size: int) -> int:
        """Bytes for so many elements."""

    def encode_part(self, part: Buffer, at: int, room: Bytes) -> Buffer:
        """The message with this rank's part, which begins at element `at`; `room` may hold it."""

    def encode_sum(self, own: Buffer, at: int, room: Bytes) -> Buffer:
        """The message with the sum of a part; `own` becomes what all ranks will read from it."""

    def read(self, message: Bytes, out: Buffer) -> None:
        """Overwrite `out` by the part that the message holds."""

    def add(self, message: Bytes, out: Buffer) -> None:
        """Add the part that the message holds to `out`."""


class Uncoded:
    """Messages that are parts of the vector itself."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._itemsize = np.dtype(dtype).itemsize

    def nbytes(self, size: int) -> int:
        return size * self._itemsize

    def encode_part(self, part: Buffer, at: int, room: Bytes) -> Buffer:
        return part

    def encode_sum(self, own: Buffer, at: int, room: Bytes) -> Buffer:
        return own

    def read(self, message: Bytes, out: Buffer) -> None:
        out[:] = message.view(out.dtype)

    def add(self, message: Bytes, out: Buffer) -> None:
        out += message.view(out.dtype)


class PipelinedAllreduce:
    """Sums vectors over all ranks, each of which is alone on its node.

    The vector is cut in one slice per rank, and a slice in parts of one message each. For part
    after part, a rank gives its own to the owner of each slice; adds up, in the order of ranks,
    what the others give for its own slice, and sends them the sum; and takes the sums of the other
    slices. Each of the three runs some messages behind the one before, all at the same time.
    """

    def __init__(
        self, world: World, dtype: npt.DTypeLike, coding: MessageCodec | None = None
    ) -> None:
        self._world = world
        self._coding: MessageCodec = coding or Uncoded(dtype)
        self._longest = _longest_part(self._coding)
        self._peers = [rank for rank in range(world.size) if rank != world.rank]
        self._ahead = max(AHEAD // max(len(self._peers), 1), 1)
        self._rooms: Bytes = np.empty((0, 0, 0, 0), np.uint8)
        self._total: Buffer = np.empty(self._longest, dtype)

    def slices(self, size: int) -> list[slice]:
        """Which elements of a vector of this size each rank owns."""
        share = -(-size // self._world.size)
        edges = [min(size, share * rank) for rank in range(self._world.size + 1)]
        return [slice(*pair) for pair in pairwise(edges)]

    def all_reduce(self, vector: Buffer) -> int:
        """Overwrite every rank's vector by the sum; the bytes that went to other ranks."""
        slices = self.slices(vector.size)
        turns = -(-slices[0].stop // self._longest) if self._peers else 0
        self._make_rooms(min(turns, 2 * self._ahead + 1))
        given: deque[_Turn] = deque()
        summed: deque[_Turn] = deque()
        sent = 0
        with np.errstate(over="ignore", invalid="ignore"):  # who computed such numbers has warned
            for number in range(turns + 2 * self._ahead):
                if number < turns:
                    given.append(self._give(vector, slices, number))
                if number >= self._ahead and given:
                    summed.append(self._add_up(given.popleft()))
                if number >= 2 * self._ahead and summed:
                    sent += self._take(summed.popleft())
        return sent

    def _make_rooms(self, turns: int) -> None:
        """Where messages lie while they are on their way; untouched memory costs nothing."""
        if turns > len(self._rooms):
            shape = (turns, len(_ROOMS), len(self._peers), MESSAGE_BYTES)
            self._rooms = aligned_zeros(int(np.prod(shape)), np.uint8).reshape(shape)

    def _give(self, vector: Buffer, slices: list[slice], number: int) -> _Turn:
        """Send the parts of one turn to their owners, and expect what comes for it."""
        world, coding = self._world, self._coding
        rooms = self._rooms[number % len(self._rooms)]
        parts = [_cut(piece, number, self._longest) for piece in slices]
        turn = _Turn(vector, parts, rooms, [], [], [])
        own = coding.nbytes(_length(parts[world.rank]))
        for at, peer in enumerate(self._peers):
            if own:
                turn.given.append(world.irecv(rooms[_TAKEN, at, :own], peer, _GIVEN))
            if not _length(parts[peer]):
                continue
            message = rooms[_READ, at, : coding.nbytes(_length(parts[peer]))]
            turn.summed.append(world.irecv(message, peer, _SUMMED))
            part = parts[peer]
            message = coding.encode_part(vector[part], part.start, rooms[_OUT, at])
            turn.leaving.append((message.nbytes, world.isend(message, peer, _GIVEN)))
        return turn

    def _add_up(self, turn: _Turn) -> _Turn:
        """Sum this rank's part of the turn, and send it to all."""
        coding, rank = self._coding, self._world.rank
        part = turn.parts[rank]
        if _length(part):
            _wait_for(turn.given)
            own = turn.vector[part]
            taken = turn.rooms[_TAKEN, :, : coding.nbytes(own.size)]
            self._sum_in_order(own, taken)
            message = coding.encode_sum(own, part.start, turn.rooms[_OWN, 0])
            for peer in self._peers:
                turn.leaving.append((message.nbytes, self._world.isend(message, peer, _SUMMED)))
        return turn

    def _sum_in_order(self, own: Buffer, taken: Bytes) -> None:
        rank = self._world.rank
        if rank < 2:  # a + b is b + a
            for message in taken:
                self._coding.add(message, own)
            return
        total = self._total[: own.size]
        self._coding.read(taken[0], total)
        for message in taken[1:rank]:
            self._coding.add(message, total)
        total += own
        for message in taken[rank:]:
            self._coding.add(message, total)
        own[:] = total

    def _take(self, turn: _Turn) -> int:
        """Read the sums of the other ranks' parts; the bytes that this rank sent in the turn."""
        _wait_for([pending for _, pending in turn.leaving])  # they may lie in the vector
        _wait_for(turn.summed)
        for at, peer in enumerate(self._peers):
            part = turn.vector[turn.parts[peer]]
            if part.size:
                self._coding.read(turn.rooms[_READ, at, : self._coding.nbytes(part.size)], part)
        return sum(nbytes for nbytes, _ in turn.leaving)


class _Turn(NamedTuple):
    """A part of each slice, and its messages."""

    vector: Buffer
    parts: list[slice]
    rooms: Bytes
    given: list[Pending]
    summed: list[Pending]
    leaving: list[tuple[int, Pending]]


_ROOMS = _OUT, _TAKEN, _OWN, _READ = range(4)


def _wait_for(messages: list[Pending]) -> None:
    patience = Backoff(_LONGEST_S, yields=0, shortest_s=_LONGEST_S / 4)
    for message in messages:
        while not message.done():
            patience.pause()


def _longest_part(coding: MessageCodec) -> int:
    """Elements of the longest part, in whole blocks of a format that has a scale for each."""
    return max(
        n for n in range(BLOCK, MESSAGE_BYTES + 1, BLOCK) if coding.nbytes(n) <= MESSAGE_BYTES
    )


def _cut(piece: slice, number: int, longest: int) -> slice:
    start = min(piece.start + number * longest, piece.stop)
    return slice(start, min(start + longest, piece.stop))


def _length(piece: slice) -> int:
    return int(piece.stop - piece.start)
