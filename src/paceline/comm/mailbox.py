"""Messages between ranks that are threads, and the receives posted for them."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.comm.world import ANY_RANK, Buffer, check_buffer
from paceline.errors import WorldError


class _Message(NamedTuple):
    """A copy of the bytes of the sender's buffer."""

    sender: int
    tag: int
    content: npt.NDArray[np.uint8]


class Mailbox:
    """One rank's unreceived messages and posted receives; each new one is matched at once."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.closed: str | None = None
        """Why no message will arrive any more."""
        self._mutex = threading.Lock()
        self._unreceived: list[_Message] = []
        self._posted: list[PostedReceive] = []

    def deliver(self, sender: int, buffer: Buffer, tag: int) -> None:
        """Give the message to the first posted receive that it matches, or keep it."""
        message = _Message(sender, tag, _bytes_of(buffer).copy())
        with self._mutex:
            for at, posted in enumerate(self._posted):
                if posted.matches(message):
                    self._posted.pop(at).fill(message)
                    return
            self._unreceived.append(message)

    def post(self, buffer: Buffer, source: int, tag: int) -> PostedReceive:
        """Give the receive the first message that it matches, or let it wait."""
        posted = PostedReceive(self, _bytes_of(buffer), source, tag)
        with self._mutex:
            for at, message in enumerate(self._unreceived):
                if posted.matches(message):
                    posted.fill(self._unreceived.pop(at))
                    return posted
            self._posted.append(posted)
        return posted

    def withdraw(self, posted: PostedReceive) -> None:
        with self._mutex:
            if posted in self._posted:
                self._posted.remove(posted)

    def close(self, reason: str) -> None:
        """Fail the receives that wait; the first reason stays."""
        with self._mutex:
            self.closed = self.closed or reason


class PostedReceive:
    """A receive that waits for its message, or has got it."""

    def __init__(self, box: Mailbox, buffer: npt.NDArray[np.uint8], source: int, tag: int) -> None:
        self.source = ANY_RANK
        self._box, self._buffer, self._wanted, self._tag = box, buffer, source, tag
        self._message: _Message | None = None

    def matches(self, message: _Message) -> bool:
        return message.tag == self._tag and self._wanted in (ANY_RANK, message.sender)

    def fill(self, message: _Message) -> None:
        fits = min(message.content.size, self._buffer.size)
        self._buffer[:fits] = message.content[:fits]
        self.source = message.sender
        self._message = message  # last: another thread may call `done` at this very moment

    def done(self) -> bool:
        message = self._message
        if message is None:
            if self._box.closed:
                raise WorldError(self._box.closed)
            return False
        if message.content.size > self._buffer.size:
            raise WorldError(
                f"rank {message.sender} sent {message.content.size} bytes with tag {self._tag}, "
                f"and rank {self._box.rank} expected {self._buffer.size} at most"
            )
        return True

    def cancel(self) -> None:
        self._box.withdraw(self)


class CompletedSend:
    """A message that was sent: its bytes were copied, so it is done."""

    def __init__(self, source: int) -> None:
        self.source = source

    def done(self) -> bool:
        return True

    def cancel(self) -> None:
        raise WorldError("a message that was sent cannot be cancelled")


def _bytes_of(buffer: Buffer) -> npt.NDArray[np.uint8]:
    return check_buffer(buffer).reshape(-1).view(np.uint8)
