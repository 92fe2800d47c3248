"""The World: what a rank can ask of the others. Three small files implement it."""

from __future__ import annotations

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


class World(Protocol):
    """All ranks, seen from one of them.

    Whatever waits for other ranks is a method; attributes are facts of this rank. Buffers are
    contiguous arrays that are read and written in place; small Python values go through `tell` and
    `share`, which may pickle and must not be used for tensors.
    """

    rank: int
    size: int
    node: str
    """The name of the machine this rank runs on."""
    node_ranks: tuple[int, ...]
    """The ranks that share memory with this one, itself included."""

    def broadcast(self, buffer: Buffer, root: int = 0) -> None:
        """Overwrite every rank's buffer by the root's."""

    def all_reduce(self, buffer: Buffer) -> None:
        """Overwrite every rank's buffer by the sum over all ranks."""

    def send(self, buffer: Buffer, to: int, tag: int = 0) -> None:
        """Send to one rank; the buffer may be used again on return."""

    def receive(self, buffer: Buffer, source: int = ANY_RANK, tag: int = 0) -> Received:
        """Wait for a message of that tag and write it into the buffer."""

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def tell(self, value: T, root: int = 0) -> T:
        """The root's small value, on every rank."""

    def share(self, value: T) -> list[T]:
        """Every rank's small value, in rank order, on every rank."""

    def split(self, colour: int) -> World:
        """A world of the ranks that gave the same colour, in the same order."""

    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks at once with this non-zero exit code."""


def check_buffer(buffer: Buffer) -> Buffer:
    """A buffer must be one piece of memory: a copy made on the way would get the result."""
    if not isinstance(buffer, np.ndarray) or not buffer.flags.c_contiguous:
        raise TypeError("a buffer must be a contiguous numpy array")
    return buffer
