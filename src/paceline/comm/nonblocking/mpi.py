"""The line of MPI: its nonblocking calls. Importing this file starts MPI; nothing imports it early.

Every rank's calls may come from several threads, at the same time.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from paceline.comm.mpi import MPIWorld
from paceline.comm.nonblocking.async_comm import (
    MAX_ELEMENTS,
    PendingReceive,
    ReduceOpName,
    Requests,
    Steps,
    cut,
    too_long,
)
from paceline.comm.nonblocking.lines import AsyncComms, solo_lines
from paceline.comm.nonblocking.node_allreduce import AsyncNodeAllreduce
from paceline.comm.world import ANY_RANK, Buffer
from paceline.errors import WorldError

# isort: split
from mpi4py import MPI

_OPS = {
    "sum": MPI.SUM,
    "product": MPI.PROD,
    "min": MPI.MIN,
    "max": MPI.MAX,
    "and": MPI.BAND,
    "or": MPI.BOR,
    "xor": MPI.BXOR,
}


class MPIAsyncComm:
    """A line over a communicator of its own."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.longest = MAX_ELEMENTS

    def until(self, requests: Requests) -> Steps[None]:
        for request in requests:
            while not request.Test():
                yield False

    def broadcast(self, buffer: Buffer, root: int) -> Requests:
        return [self._comm.Ibcast(piece, root=root) for piece in cut(buffer, self.longest)]

    def all_reduce(self, buffer: Buffer, how: ReduceOpName) -> Requests:
        pieces = cut(buffer, self.longest)
        return [self._comm.Iallreduce(MPI.IN_PLACE, piece, op=_OPS[how]) for piece in pieces]

    def reduce(self, buffer: Buffer, how: ReduceOpName, root: int) -> Requests:
        pieces = cut(buffer, self.longest)
        if self.rank != root:
            return [self._comm.Ireduce(piece, None, op=_OPS[how], root=root) for piece in pieces]
        start = self._comm.Ireduce
        return [start(MPI.IN_PLACE, piece, op=_OPS[how], root=root) for piece in pieces]

    def all_gather(self, piece: Buffer, whole: Buffer) -> Requests:
        return [self._comm.Iallgather(piece, whole)]

    def reduce_scatter(
        self, whole: Buffer, piece: Buffer, sizes: Sequence[int], how: ReduceOpName
    ) -> Requests:
        return [self._comm.Ireduce_scatter(whole, piece, list(sizes), op=_OPS[how])]

    def barrier(self) -> Requests:
        return [self._comm.Ibarrier()]

    def send(self, buffer: Buffer, to: int, tag: int) -> Requests:
        pieces = cut(buffer, self.longest)
        return [self._comm.Isend(piece, dest=to, tag=tag) for piece in pieces]

    def receive(self, buffer: Buffer, source: int, tag: int) -> PendingReceive:
        pieces = cut(buffer, self.longest)
        if source == ANY_RANK and len(pieces) > 1:
            # Its later pieces could be taken by another receive from any rank.
            raise WorldError(
                f"a message of {buffer.size} bytes from any rank is too long for one call of MPI; "
                "name the rank that sends it"
            )
        wanted = MPI.ANY_SOURCE if source == ANY_RANK else source
        requests = [self._comm.Irecv(piece, source=wanted, tag=tag) for piece in pieces]
        return _Coming(requests, buffer.nbytes)

    def split(self, colour: int) -> MPIAsyncComm:
        """A line of the ranks that gave the same colour; all ranks make it together."""
        return MPIAsyncComm(self._comm.Split(colour, self.rank))

    def duplicate(self) -> MPIAsyncComm:
        """A line of the same ranks, for other messages; all ranks make it together."""
        return MPIAsyncComm(self._comm.Dup())

    def close(self) -> None:
        if not MPI.Is_finalized():
            self._comm.Free()


class _Coming:
    """Posted receives of the pieces of one message."""

    def __init__(self, requests: list[Any], room: int) -> None:
        self.source, self.nbytes = ANY_RANK, 0
        self._requests, self._room = requests, room
        self._status = MPI.Status()

    def done(self) -> bool:
        while self._requests:
            try:
                if not self._requests[0].Test(self._status):
                    return False
            except MPI.Exception as error:
                if error.Get_error_class() != MPI.ERR_TRUNCATE:
                    raise
                raise too_long(self._status.Get_source(), self._room) from error
            del self._requests[0]
            self.source = self._status.Get_source()
            self.nbytes += self._status.Get_count(MPI.BYTE)
        return True

    def cancel(self) -> None:
        """MPI does not take back what has begun to come, and to wait for the rest could take for
        ever. It may still be written to its buffer, which therefore stays."""
        for request in self._requests:
            request.Cancel()
        with contextlib.suppress(MPI.Exception):  # it has come, and was too long
            self._requests = [request for request in self._requests if not request.Test()]
        if self._requests:
            _begun.append(self)


_begun: list[_Coming] = []
"""Messages that nobody expects any more, and that were on their way."""


def open_lines(
    world: MPIWorld, ranks: Sequence[int], nodes: Sequence[int], name: str
) -> AsyncComms:
    """AsyncComms of these ranks, in this order; all of them, and nobody else, open it together.

    `nodes` tells of every rank of the world on which node it is. Groups that are opened at the
    same time are told apart by their names.
    """
    if len(ranks) == 1:
        return solo_lines()
    members = world._comm.Get_group().Incl(list(ranks))
    comm = world._comm.Create_group(members, tag=zlib.crc32(name.encode()) % 2**15)
    members.Free()
    together, here = MPIAsyncComm(comm), [nodes[rank] for rank in ranks]
    messages, behind = together.duplicate(), together.duplicate()
    echo = AsyncComms(behind, behind, _sums_of(behind, here))
    return AsyncComms(together, messages, _sums_of(together, here), echo)


def _sums_of(line: MPIAsyncComm, nodes: Sequence[int]) -> AsyncNodeAllreduce | None:
    on_node: defaultdict[int, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        on_node[node].append(rank)
    if len(on_node) == len(nodes):
        return None
    owners = min(map(len, on_node.values()))
    if len(on_node) == 1:
        return AsyncNodeAllreduce(line, line, None, owners)
    neighbours = line.split(nodes[line.rank])
    across = line.split(neighbours.rank)
    return AsyncNodeAllreduce(
        line, neighbours, across if neighbours.rank < owners else None, owners
    )
