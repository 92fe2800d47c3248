"""A world of one rank: every exchange is with itself, so nothing moves."""

from __future__ import annotations

import socket
from typing import NoReturn

import numpy.typing as npt

from paceline.comm.node_memory import ProcessMemory, reserve
from paceline.comm.world import (
    ANY_RANK,
    Buffer,
    NodeMemory,
    Pending,
    Received,
    T,
    check_buffer,
    check_pieces,
)
from paceline.core.vectors import aligned_zeros
from paceline.errors import WorldError


class SoloWorld:
    """The only rank. No MPI is started."""

    rank = 0
    size = 1
    node_ranks: tuple[int, ...] = (0,)
    thread_multiple = True
    poll_interval_s: float | None = None

    def __init__(self) -> None:
        self.node = socket.gethostname()

    def broadcast(self, buffer: Buffer, root: int = 0) -> None:
        check_buffer(buffer)

    def all_reduce(self, buffer: Buffer) -> None:
        check_buffer(buffer)

    def make_buffer(self, size: int, dtype: npt.DTypeLike) -> Buffer:
        return aligned_zeros(size, dtype)

    def drop_buffer(self, buffer: Buffer) -> None:
        return None

    def all_to_all(self, send: Buffer, receive: Buffer) -> None:
        check_pieces(send, receive, 1)
        receive.reshape(-1)[:] = send.reshape(-1)

    def send(self, buffer: Buffer, to: int, tag: int = 0) -> None:
        raise WorldError(f"rank 0 is alone and cannot send to rank {to}")

    def receive(self, buffer: Buffer, source: int = ANY_RANK, tag: int = 0) -> Received:
        raise WorldError("rank 0 is alone and would wait for ever for a message")

    def irecv(self, buffer: Buffer, source: int = ANY_RANK, tag: int = 0) -> Pending:
        raise WorldError("rank 0 is alone and nobody will send what it expects")

    def isend(self, buffer: Buffer, to: int, tag: int = 0) -> Pending:
        raise WorldError(f"rank 0 is alone and cannot send to rank {to}")

    def barrier(self) -> None:
        return None

    def bcast_value(self, value: T, root: int = 0) -> T:
        return value

    def allgather_values(self, value: T) -> list[T]:
        return [value]

    def node_memory(self, nbytes: int, locks: int = 1) -> NodeMemory:
        return ProcessMemory(*reserve(nbytes, locks))

    def raise_if_failed(self) -> None:
        return None

    def split(self, colour: int) -> SoloWorld:
        return self

    def free(self) -> None:
        """Nothing is held."""

    def abort(self, code: int = 1) -> NoReturn:
        raise SystemExit(code)
