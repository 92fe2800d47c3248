"""The world of MPI, through mpi4py. Importing this file starts MPI; nothing imports it early."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import mpi4py

# Collectives may come from a communication thread, one call at a time.
mpi4py.rc(thread_level="serialized")

from mpi4py import MPI  # noqa: E402

from paceline.comm.world import ANY_RANK, Buffer, Received, T, check_buffer  # noqa: E402

MAX_ELEMENTS = 2**30
"""Elements per call: MPI counts are 32-bit before MPI 4."""


class MPIWorld:
    """One rank of an MPI communicator."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.node: str = MPI.Get_processor_name()
        neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.node_ranks: tuple[int, ...] = tuple(neighbours.allgather(self.rank))
        neighbours.Free()

    def broadcast(self, buffer: Buffer, root: int = 0) -> None:
        for piece in _pieces(buffer):
            self._comm.Bcast(piece, root=root)

    def all_reduce(self, buffer: Buffer) -> None:
        for piece in _pieces(buffer):
            self._comm.Allreduce(MPI.IN_PLACE, piece)

    def send(self, buffer: Buffer, to: int, tag: int = 0) -> None:
        for piece in _pieces(buffer):
            self._comm.Send(piece, dest=to, tag=tag)

    def receive(self, buffer: Buffer, source: int = ANY_RANK, tag: int = 0) -> Received:
        status = MPI.Status()
        wanted = MPI.ANY_SOURCE if source == ANY_RANK else source
        for piece in _pieces(buffer):
            self._comm.Recv(piece, source=wanted, tag=tag, status=status)
            wanted = status.Get_source()  # all pieces of one message from one rank
        return Received(wanted, tag)

    def barrier(self) -> None:
        self._comm.Barrier()

    def tell(self, value: T, root: int = 0) -> T:
        result: T = self._comm.bcast(value, root=root)
        return result

    def share(self, value: T) -> list[T]:
        result: list[T] = self._comm.allgather(value)
        return result

    def split(self, colour: int) -> MPIWorld:
        return MPIWorld(self._comm.Split(colour, self.rank))

    def abort(self, code: int = 1) -> NoReturn:
        Everyone().abort(code)


def _pieces(buffer: Buffer) -> list[Buffer]:
    flat = check_buffer(buffer).reshape(-1)
    if flat.size <= MAX_ELEMENTS:
        return [flat]
    return [flat[at : at + MAX_ELEMENTS] for at in range(0, flat.size, MAX_ELEMENTS)]


def world_of_mpi() -> MPIWorld:
    """All ranks that the launcher started, on a communicator of Paceline's own."""
    return MPIWorld(MPI.COMM_WORLD.Dup())


class Everyone:
    """All ranks of MPI, for ending them: unlike a world, it is made without their help."""

    def __init__(self) -> None:
        self.rank: int = MPI.COMM_WORLD.Get_rank()
        self.size: int = MPI.COMM_WORLD.Get_size()
        self.node: str = MPI.Get_processor_name()

    def abort(self, code: int = 1) -> NoReturn:
        MPI.COMM_WORLD.Abort(code)
        os._exit(code)
