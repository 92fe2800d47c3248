"""The mail of ranks that are threads: messages, and receives that wait for them."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.comm.world import ANY_RANK, Buffer, check_buffer
from paceline.errors import WorldError


class _Letter(NamedTuple):
    """A copy of the bytes of the sender's buffer."""

    sender: int
    tag: int
    content: npt.NDArray[np.uint8]


class Mailbox:
    """What was sent to one rank, and what it expects; whoever comes second finds the other."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.closed: str | None = None
        """Why nothing comes any more."""
        self.changed = threading.Condition()
        self._letters: list[_Letter] = []
        self._expected: list[Expected] = []

    def deliver(self, sender: int, buffer: Buffer, tag: int) -> None:
        """Give the message to the first receive that waits for it, or keep it."""
        letter = _Letter(sender, tag, _bytes_of(buffer).copy())
        with self.changed:
            for at, expected in enumerate(self._expected):
                if expected.matches(letter):
                    self._expected.pop(at).take(letter)
                    self.changed.notify_all()
                    return
            self._letters.append(letter)

    def expect(self, buffer: Buffer, source: int, tag: int) -> Expected:
        """Give the receive the first message that it matches, or let it wait."""
        expected = Expected(self, _bytes_of(buffer), source, tag)
        with self.changed:
            for at, letter in enumerate(self._letters):
                if expected.matches(letter):
                    expected.take(self._letters.pop(at))
                    return expected
            self._expected.append(expected)
        return expected

    def forget(self, expected: Expected) -> None:
        with self.changed:
            if expected in self._expected:
                self._expected.remove(expected)

    def close(self, reason: str) -> None:
        """Wake those who wait; the first reason stays."""
        with self.changed:
            self.closed = self.closed or reason
            self.changed.notify_all()


class Expected:
    """A posted receive."""

    def __init__(self, box: Mailbox, buffer: npt.NDArray[np.uint8], source: int, tag: int) -> None:
        self.source = ANY_RANK
        self._box, self._buffer, self._wanted, self._tag = box, buffer, source, tag
        self._letter: _Letter | None = None

    def matches(self, letter: _Letter) -> bool:
        return letter.tag == self._tag and self._wanted in (ANY_RANK, letter.sender)

    def take(self, letter: _Letter) -> None:
        fits = min(letter.content.size, self._buffer.size)
        self._buffer[:fits] = letter.content[:fits]
        self.source = letter.sender
        self._letter = letter  # last: another thread may look at this very moment

    def done(self) -> bool:
        letter = self._letter
        if letter is None:
            if self._box.closed:
                raise WorldError(self._box.closed)
            return False
        if letter.content.size > self._buffer.size:
            raise WorldError(
                f"rank {letter.sender} sent {letter.content.size} bytes with tag {self._tag}, and "
                f"rank {self._box.rank} expected {self._buffer.size} at most"
            )
        return True

    def wait(self) -> None:
        with self._box.changed:
            while not self.done():
                self._box.changed.wait()

    def cancel(self) -> None:
        self._box.forget(self)


class Dispatched:
    """A message that was sent: it was copied, so it is done."""

    def __init__(self, source: int) -> None:
        self.source = source

    def done(self) -> bool:
        return True

    def cancel(self) -> None:
        raise WorldError("a message that was sent cannot be taken back")


def _bytes_of(buffer: Buffer) -> npt.NDArray[np.uint8]:
    return check_buffer(buffer).reshape(-1).view(np.uint8)
