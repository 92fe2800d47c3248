"""The world of MPI, through mpi4py. Importing this file starts MPI; nothing imports it early."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import mpi4py
import numpy as np
import numpy.typing as npt

# A rank may serve others from one thread while another trains: both talk, at the same time.
# An MPI that cannot do it gives less, which `threads_may_talk` tells. It costs 0.4 us per call.
mpi4py.rc(thread_level="multiple")

from mpi4py import MPI  # noqa: E402

from paceline.comm.allreduce.node import SMALL_BYTES, NodeAllreduce  # noqa: E402
from paceline.comm.allreduce.pipelined import LONG_BYTES, PipelinedAllreduce  # noqa: E402
from paceline.comm.node_memory import map_together  # noqa: E402
from paceline.comm.polling import LONGEST_S, wait_until  # noqa: E402
from paceline.comm.values import from_bytes, to_bytes  # noqa: E402
from paceline.comm.world import (  # noqa: E402
    ANY_RANK,
    Buffer,
    NodeMemory,
    Pending,
    Received,
    T,
    check_buffer,
    check_pieces,
)
from paceline.core.vectors import aligned_zeros  # noqa: E402
from paceline.errors import WorldError  # noqa: E402

MAX_ELEMENTS = 2**30
"""Elements per collective: MPI counts are 32-bit before MPI 4, and so are some of its sums."""
MAX_MESSAGE = 2**31 - 1
"""Elements per message."""


class MPIWorld:
    """One rank of an MPI communicator."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.node: str = MPI.Get_processor_name()
        neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
        ranks = np.empty(neighbours.Get_size(), np.int64)
        neighbours.Allgather(np.array([self.rank]), ranks)
        self.node_ranks: tuple[int, ...] = tuple(ranks.tolist())
        neighbours.Free()
        self.poll_interval_s: float | None = None
        self._sums: NodeAllreduce | None = None
        self._sums_tried = self._pipes = False
        self._pipe_of: dict[np.dtype[Any], PipelinedAllreduce] = {}
        self.thread_multiple: bool = MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def broadcast(self, buffer: Buffer, root: int = 0) -> None:
        for piece in _pieces(buffer, MAX_ELEMENTS):
            self._comm.Bcast(piece, root=root)

    def all_reduce(self, buffer: Buffer) -> None:
        small = check_buffer(buffer).nbytes <= SMALL_BYTES
        if small and self.poll_interval_s is None:
            self._comm.Allreduce(MPI.IN_PLACE, buffer)
            return
        sums = None if small else self._node_sums()
        if sums is not None and sums.all_reduce(buffer.reshape(-1)):
            return
        if self._pipes and buffer.nbytes >= LONG_BYTES:
            self._pipe_for(buffer.dtype).all_reduce(buffer.reshape(-1))
            return
        for piece in _pieces(buffer, MAX_ELEMENTS):
            if self.poll_interval_s is None:
                self._comm.Allreduce(MPI.IN_PLACE, piece)
            else:
                self._await(self._comm.Iallreduce(MPI.IN_PLACE, piece))

    def make_buffer(self, size: int, dtype: npt.DTypeLike) -> Buffer:
        kind, sums = np.dtype(dtype), self._node_sums()
        try:
            if sums is not None:
                return sums.make_buffer(size * kind.itemsize).view(kind)
        except WorldError:  # on all ranks: the sum then goes through what memory there is
            pass
        return aligned_zeros(size, kind)

    def drop_buffer(self, buffer: Buffer) -> None:
        if self._sums is not None:
            self._sums.drop_buffer(buffer)

    def _node_sums(self) -> NodeAllreduce | None:
        """How ranks that share nodes sum; None where no rank has a neighbour, or no memory.

        Where no rank has one, long sums go in short messages, unless the network has better.

        Made when it is first needed, by all ranks together.
        """
        if not self._sums_tried:
            self._sums_tried = True
            known = self.allgather_values((len(self.node_ranks), _has_fabric()))
            shared = any(neighbours > 1 for neighbours, _ in known)
            self._pipes = not shared and not any(fabric for _, fabric in known)
            try:
                self._sums = NodeAllreduce(self) if shared else None
            except WorldError:  # on all ranks
                self._sums = None
        return self._sums

    def _pipe_for(self, dtype: np.dtype[Any]) -> PipelinedAllreduce:
        if dtype not in self._pipe_of:
            self._pipe_of[dtype] = PipelinedAllreduce(self, dtype)
        return self._pipe_of[dtype]

    def all_to_all(self, send: Buffer, receive: Buffer) -> None:
        check_pieces(send, receive, self.size)
        outgoing, incoming = send.reshape(self.size, -1), receive.reshape(self.size, -1)
        if send.size <= MAX_ELEMENTS:
            if self.poll_interval_s is None:
                self._comm.Alltoall(outgoing, incoming)
            else:
                self._await(self._comm.Ialltoall(outgoing, incoming))
            return
        for part in _columns(outgoing.shape[1], self.size):
            piece = np.ascontiguousarray(outgoing[:, part])
            got = np.empty_like(piece)
            self._comm.Alltoall(piece, got)
            incoming[:, part] = got

    def send(self, buffer: Buffer, to: int, tag: int = 0) -> None:
        for piece in _pieces(buffer, MAX_MESSAGE):
            self._comm.Send(piece, dest=to, tag=tag)

    def receive(self, buffer: Buffer, source: int = ANY_RANK, tag: int = 0) -> Received:
        status = MPI.Status()
        wanted = MPI.ANY_SOURCE if source == ANY_RANK else source
        for piece in _pieces(buffer, MAX_MESSAGE):
            self._comm.Recv(piece, source=wanted, tag=tag, status=status)
            wanted = status.Get_source()  # all pieces of one message from one rank
        return Received(wanted, tag)

    def irecv(self, buffer: Buffer, source: int = ANY_RANK, tag: int = 0) -> Pending:
        wanted = MPI.ANY_SOURCE if source == ANY_RANK else source
        return _Expected(self._comm.Irecv(_whole(buffer), source=wanted, tag=tag))

    def isend(self, buffer: Buffer, to: int, tag: int = 0) -> Pending:
        return _Dispatched(self._comm.Isend(_whole(buffer), dest=to, tag=tag), self.rank)

    def barrier(self) -> None:
        if self.poll_interval_s is None:
            self._comm.Barrier()
        else:
            self._await(self._comm.Ibarrier())

    def _await(self, request: Any) -> None:
        wait_until(request.Test, self.poll_interval_s or LONGEST_S)

    def bcast_value(self, value: T, root: int = 0) -> T:
        data = np.frombuffer(to_bytes(value), np.uint8) if self.rank == root else None
        size = np.array([0 if data is None else data.size])
        self._comm.Bcast(size, root=root)
        buffer = np.empty(int(size[0]), np.uint8) if data is None else data.copy()
        self._comm.Bcast(buffer, root=root)
        result: T = value if self.rank == root else from_bytes(buffer.tobytes())
        return result

    def allgather_values(self, value: T) -> list[T]:
        data = np.frombuffer(to_bytes(value), np.uint8).copy()
        sizes = np.empty(self.size, np.int64)
        self._comm.Allgather(np.array([data.size]), sizes)
        everything = np.empty(int(sizes.sum()), np.uint8)
        self._comm.Allgatherv(data, [everything, sizes.tolist()])
        ends = np.cumsum(sizes).tolist()
        pieces = zip([0, *ends[:-1]], ends, strict=True)
        return [from_bytes(everything[first:last].tobytes()) for first, last in pieces]

    def node_memory(self, nbytes: int, locks: int = 1) -> NodeMemory:
        # Not by what MPI knows of nodes: `node_ranks` may be set to less, to try several nodes.
        neighbours = self.split(min(self.node_ranks))
        try:
            return map_together(self, neighbours, nbytes, locks)
        finally:
            neighbours.free()

    def raise_if_failed(self) -> None:
        """A rank that fails ends all of MPI."""

    def split(self, colour: int) -> MPIWorld:
        part = MPIWorld(self._comm.Split(colour, self.rank))
        part.poll_interval_s = self.poll_interval_s
        return part

    def free(self) -> None:
        self._comm.Free()

    def abort(self, code: int = 1) -> NoReturn:
        AllRanks().abort(code)


class _Expected:
    """A posted receive."""

    def __init__(self, request: Any) -> None:
        self.source = ANY_RANK
        self._request, self._status = request, MPI.Status()
        self._done = False
        self._problem: str | None = None

    def done(self) -> bool:
        if self._request is not None:
            self._settle(self._request.Test)
        if self._problem:
            raise WorldError(self._problem)
        return self._done

    def cancel(self) -> None:
        if self._request is not None:
            self._request.Cancel()
            self._settle(self._request.Wait)  # frees it; what had come before is received here

    def _settle(self, ask: Callable[[Any], bool]) -> None:
        """Ask MPI how it stands; a request that is over must not be asked again."""
        try:
            if not ask(self._status):
                return
            if not self._status.Is_cancelled():
                self._done, self.source = True, self._status.Get_source()
        except MPI.Exception as error:
            self._problem = f"a message could not be received: {error}"
        self._request = None


class _Dispatched:
    """A send that was started."""

    def __init__(self, request: Any, source: int) -> None:
        self._request, self.source, self._done = request, source, False

    def done(self) -> bool:
        self._done = self._done or bool(self._request.Test())
        return self._done

    def cancel(self) -> None:
        raise WorldError("a message that was sent cannot be taken back")


def _pieces(buffer: Buffer, longest: int) -> list[Buffer]:
    flat = check_buffer(buffer).reshape(-1)
    if flat.size <= longest:
        return [flat]
    return [flat[at : at + longest] for at in range(0, flat.size, longest)]


def _columns(length: int, ranks: int) -> Iterator[slice]:
    """Parts of all ranks' pieces that together are short enough for one call."""
    width = max(MAX_ELEMENTS // ranks, 1)
    for at in range(0, length, width):
        yield slice(at, at + width)


def _has_fabric() -> bool:
    """Whether the node has a network that MPI drives better than we can: not just Ethernet."""
    return any(any(Path("/sys/class", kind).glob("*")) for kind in ("infiniband", "cxi"))


def _whole(buffer: Buffer) -> Buffer:
    """A posted message is never divided: its parts could meet different receives."""
    if check_buffer(buffer).size > MAX_MESSAGE:
        raise ValueError(
            f"a posted message has {buffer.size} elements, and MPI takes at most {MAX_MESSAGE}; "
            "divide it, or send wider elements"
        )
    return buffer.reshape(-1)


class Library(NamedTuple):
    """The MPI library that mpi4py has loaded."""

    path: str | None
    version: str
    standard: str
    ulfm: bool | None
    """Whether it was built so that ranks may fail; None if its file is not known."""


def library() -> Library:
    """Which MPI this is. It starts nothing, but importing this file does, unless the environment
    has MPI4PY_RC_INITIALIZE=0."""
    maps = Path("/proc/self/maps")  # not on every system
    lines = maps.read_text().splitlines() if maps.exists() else []
    files = (line.split(maxsplit=5)[5] for line in lines if "/libmpi" in line)
    path = next((name for name in files if Path(name).name.startswith("libmpi")), None)
    version = str(MPI.Get_library_version()).strip("\0 \n")
    # MPICH has functions of these names, too, and emulates them.
    ulfm = None if path is None else hasattr(ctypes.CDLL(path), "MPIX_Comm_revoke")
    standard = ".".join(map(str, MPI.Get_version()))
    return Library(path, version, standard, ulfm and version.startswith("Open MPI"))


def world_of_mpi() -> MPIWorld:
    """All ranks that the launcher started, on a communicator of Paceline's own."""
    return MPIWorld(MPI.COMM_WORLD.Dup())


class AllRanks:
    """All ranks of MPI, for ending them: unlike a world, it is made without their help."""

    def __init__(self) -> None:
        self.rank: int = MPI.COMM_WORLD.Get_rank()
        self.size: int = MPI.COMM_WORLD.Get_size()
        self.node: str = MPI.Get_processor_name()

    def abort(self, code: int = 1) -> NoReturn:
        MPI.COMM_WORLD.Abort(code)
        os._exit(code)
