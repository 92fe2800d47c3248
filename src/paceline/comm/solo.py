"""A world of one rank: nothing has to be moved."""

from __future__ import annotations

import socket
from typing import NoReturn

import numpy.typing as npt

from paceline.comm.node_memory import ProcessMemory, reserve
from paceline.comm.world import ANY_RANK, Buffer, NodeMemory, Pending, T, check_buffer
from paceline.core.vectors import aligned_zeros
from paceline.errors import WorldError


class SoloWorld:
    """The only rank. It does not start MPI."""

    rank = 0
    size = 1
    node_ranks: tuple[int, ...] = (0,)
    elastic = False
    generation_number = 0
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

    def irecv(self, buffer: Buffer, source: int = ANY_RANK, tag: int = 0) -> Pending:
        raise WorldError("rank 0 is alone: nobody will send what it waits for")

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
        """Nothing to release."""

    def abort(self, code: int = 1) -> NoReturn:
        raise SystemExit(code)
