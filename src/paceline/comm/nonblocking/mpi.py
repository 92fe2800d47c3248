"""Nonblocking communication over MPI. Importing this module starts MPI, so import it late.

Several threads of a rank may call at the same time.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import cast

from paceline.comm.mpi import MPIWorld
from paceline.comm.nonblocking.async_comm import (
    MAX_ELEMENTS,
    AsyncComms,
    PendingReceive,
    ReduceOpName,
    Requests,
    Steps,
    solo_comms,
    too_long,
)
from paceline.comm.nonblocking.node_allreduce import AsyncNodeAllreduce
from paceline.comm.world import ANY_RANK, Buffer
from paceline.core.chunks import split_buffer
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
    """An MPI communicator that nobody else uses."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.longest = MAX_ELEMENTS

    def wait_for_all(self, requests: Requests) -> Steps[None]:
        for request in requests:
            while not request.Test():
                yield False

    def broadcast(self, buffer: Buffer, root: int) -> Requests:
        return [self._comm.Ibcast(piece, root=root) for piece in split_buffer(buffer, self.longest)]

    def all_reduce(self, buffer: Buffer, how: ReduceOpName) -> Requests:
        pieces = split_buffer(buffer, self.longest)
        return [self._comm.Iallreduce(MPI.IN_PLACE, piece, op=_OPS[how]) for piece in pieces]

    def reduce(self, buffer: Buffer, how: ReduceOpName, root: int) -> Requests:
        pieces = split_buffer(buffer, self.longest)
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
        pieces = split_buffer(buffer, self.longest)
        return [self._comm.Isend(piece, dest=to, tag=tag) for piece in pieces]

    def receive(self, buffer: Buffer, source: int, tag: int) -> PendingReceive:
        pieces = split_buffer(buffer, self.longest)
        if source == ANY_RANK and len(pieces) > 1:
            # Another receive from any rank could match its later pieces.
            raise WorldError(
                f"a message of {buffer.size} bytes from any rank is too long for one call of MPI; "
                "name the rank that sends it"
            )
        wanted = MPI.ANY_SOURCE if source == ANY_RANK else source
        requests = [self._comm.Irecv(piece, source=wanted, tag=tag) for piece in pieces]
        return _PendingPieces(requests, buffer.nbytes)

    def split(self, colour: int) -> MPIAsyncComm:
        """A communicator of the ranks with the same colour; collective."""
        return MPIAsyncComm(self._comm.Split(colour, self.rank))

    def duplicate(self) -> MPIAsyncComm:
        """A separate communicator of the same ranks; collective."""
        return MPIAsyncComm(self._comm.Dup())

    def close(self) -> None:
        if not MPI.Is_finalized():
            self._comm.Free()


class _PendingPieces:
    """Posted receives for the pieces of one message."""

    def __init__(self, requests: list[MPI.Request], expected_bytes: int) -> None:
        self.source, self.nbytes = ANY_RANK, 0
        self._requests, self._expected_bytes = requests, expected_bytes
        self._status = MPI.Status()

    def done(self) -> bool:
        while self._requests:
            try:
                if not self._requests[0].Test(self._status):
                    return False
            except MPI.Exception as error:
                if error.Get_error_class() != MPI.ERR_TRUNCATE:
                    raise
                raise too_long(self._status.Get_source(), self._expected_bytes) from error
            del self._requests[0]
            self.source = self._status.Get_source()
            self.nbytes += self._status.Get_count(MPI.BYTE)
        return True

    def cancel(self) -> None:
        """Withdraw what MPI lets us withdraw.

        MPI does not cancel a message that has begun to arrive, and waiting for the rest could take
        forever. It may still write to the buffer, so the buffer is kept.
        """
        for request in self._requests:
            request.Cancel()
        with contextlib.suppress(MPI.Exception):  # it has arrived, and was too long
            self._requests = [request for request in self._requests if not request.Test()]
        if self._requests:
            _abandoned.append(self)


_abandoned: list[_PendingPieces] = []
"""Cancelled receives whose messages were already arriving."""


def open_comms(
    world: MPIWorld, ranks: Sequence[int], nodes: Sequence[int], name: str
) -> AsyncComms:
    """The communicators of these ranks, in this order; exactly these ranks call it together.

    `nodes` holds the node of every rank of the world. The name tells groups apart that are opened
    at the same time.
    """
    if len(ranks) == 1:
        return solo_comms()
    whole = cast("MPI.Intracomm", world._comm)
    members = whole.Get_group().Incl(list(ranks))
    created = whole.Create_group(members, tag=zlib.crc32(name.encode()) % 2**15)
    members.Free()
    comm, here = MPIAsyncComm(created), [nodes[rank] for rank in ranks]
    messages, callbacks = comm.duplicate(), comm.duplicate()
    callback_comms = AsyncComms(callbacks, callbacks, _node_allreduce(callbacks, here))
    return AsyncComms(comm, messages, _node_allreduce(comm, here), callback_comms)


def _node_allreduce(comm: MPIAsyncComm, nodes: Sequence[int]) -> AsyncNodeAllreduce | None:
    on_node: defaultdict[int, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        on_node[node].append(rank)
    if len(on_node) == len(nodes):
        return None
    owners = min(map(len, on_node.values()))
    if len(on_node) == 1:
        return AsyncNodeAllreduce(comm, comm, None, owners)
    local = comm.split(nodes[comm.rank])
    cross = comm.split(local.rank)
    return AsyncNodeAllreduce(comm, local, cross if local.rank < owners else None, owners)
