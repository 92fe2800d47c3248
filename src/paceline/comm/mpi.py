"""The world of MPI, through mpi4py. Importing this module starts MPI, so import it late."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

import mpi4py
import numpy as np
import numpy.typing as npt

# One thread of a rank may serve other ranks while another trains. An MPI that cannot do so grants
# less (see `thread_multiple`). It costs 0.4 us per call.
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
    T,
    check_buffer,
)
from paceline.core.chunks import split_buffer  # noqa: E402
from paceline.core.vectors import aligned_zeros  # noqa: E402
from paceline.errors import PacelineError, WorldError  # noqa: E402

Explain = Callable[[MPI.Exception], PacelineError]

MAX_ELEMENTS = 2**30
"""Elements per collective: before MPI 4 its counts are 32-bit, and so are some sums of them."""
MAX_MESSAGE = 2**31 - 1
"""Elements per message."""


class MPIWorld:
    """One rank of an MPI communicator."""

    elastic = False
    generation_number = 0

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.node: str = MPI.Get_processor_name()
        self.node_ranks: tuple[int, ...] = self._find_node_ranks()
        self.poll_interval_s: float | None = None
        self._node_allreduce: NodeAllreduce | None = None
        self._chosen = self._uses_pipelines = False
        self._pipelines: dict[int, PipelinedAllreduce] = {}
        """By the number of the element type."""
        self.thread_multiple: bool = MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def _find_node_ranks(self) -> tuple[int, ...]:
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        ranks = np.empty(local.Get_size(), np.int64)
        local.Allgather(np.array([self.rank]), ranks)
        local.Free()
        return tuple(ranks.tolist())

    def broadcast(self, buffer: Buffer, root: int = 0) -> None:
        for piece in _pieces(buffer, MAX_ELEMENTS):
            self._comm.Bcast(piece, root=root)

    def all_reduce(self, buffer: Buffer) -> None:
        small = check_buffer(buffer).nbytes <= SMALL_BYTES
        if small and self.poll_interval_s is None:
            self._comm.Allreduce(MPI.IN_PLACE, buffer)
            return
        on_nodes = None if small else self._choose_allreduce()
        if on_nodes is not None and on_nodes.all_reduce(buffer.reshape(-1)):
            return
        if self._uses_pipelines and buffer.nbytes >= LONG_BYTES:
            self._pipeline_for(buffer).all_reduce(buffer.reshape(-1))
            return
        for piece in _pieces(buffer, MAX_ELEMENTS):
            if self.poll_interval_s is None:
                self._comm.Allreduce(MPI.IN_PLACE, piece)
            else:
                self._await(self._comm.Iallreduce(MPI.IN_PLACE, piece))

    def make_buffer(self, size: int, dtype: npt.DTypeLike) -> Buffer:
        kind, on_nodes = np.dtype(dtype), self._choose_allreduce()
        try:
            if on_nodes is not None:
                return on_nodes.make_buffer(size * kind.itemsize).view(kind)
        except WorldError:  # on all ranks: sums then go through the stages
            pass
        return aligned_zeros(size, kind)

    def drop_buffer(self, buffer: Buffer) -> None:
        if self._node_allreduce is not None:
            self._node_allreduce.drop_buffer(buffer)

    def _choose_allreduce(self) -> NodeAllreduce | None:
        """The sum through node memory; None if every rank is alone on its node, or without memory.

        If every rank is alone, long sums are pipelined, unless MPI drives a faster network.

        Collective when first called.
        """
        if not self._chosen:
            self._chosen = True
            known = self.allgather_values((len(self.node_ranks), _has_fabric()))
            shared = any(ranks > 1 for ranks, _ in known)
            self._uses_pipelines = not shared and not any(fabric for _, fabric in known)
            try:
                self._node_allreduce = NodeAllreduce(self) if shared else None
            except WorldError:  # on all ranks
                self._node_allreduce = None
        return self._node_allreduce

    def _pipeline_for(self, buffer: Buffer) -> PipelinedAllreduce:
        number = buffer.dtype.num
        if number not in self._pipelines:
            self._pipelines[number] = PipelinedAllreduce(self, buffer.dtype)
        return self._pipelines[number]

    def irecv(self, buffer: Buffer, source: int = ANY_RANK, tag: int = 0) -> Pending:
        wanted = MPI.ANY_SOURCE if source == ANY_RANK else source
        request = self._comm.Irecv(_whole(buffer), source=wanted, tag=tag)
        return _PendingReceive(request, self._explain)

    def isend(self, buffer: Buffer, to: int, tag: int = 0) -> Pending:
        request = self._comm.Isend(_whole(buffer), dest=to, tag=tag)
        return _PendingSend(request, self.rank, self._explain)

    def barrier(self) -> None:
        if self.poll_interval_s is None:
            self._comm.Barrier()
        else:
            self._await(self._comm.Ibarrier())

    def _await(self, request: MPI.Request) -> None:
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
        # Not from what MPI knows of nodes: tests set `node_ranks` to fewer, to simulate several.
        local = self.split(min(self.node_ranks))
        try:
            return map_together(self, local, nbytes, locks)
        finally:
            local.free()

    def raise_if_failed(self) -> None:
        """Nothing to check: a rank that fails ends all of MPI."""

    def split(self, colour: int) -> MPIWorld:
        part = self._make(self._comm.Split(colour, self.rank))
        part.poll_interval_s = self.poll_interval_s
        return part

    def _make(self, comm: MPI.Comm) -> MPIWorld:
        """A world of the same kind, of ranks of this one."""
        return MPIWorld(comm)

    def _explain(self, error: MPI.Exception) -> PacelineError:
        """What an error of MPI means to whoever waits for a message."""
        return WorldError(f"a message could not be received: {error}")

    def free(self) -> None:
        self._comm.Free()

    def abort(self, code: int = 1) -> NoReturn:
        AllRanks().abort(code)


class _PendingReceive:
    """A posted receive."""

    def __init__(self, request: MPI.Request, explain: Explain) -> None:
        self.source, self._explain = ANY_RANK, explain
        self._request: MPI.Request | None = request
        self._status = MPI.Status()
        self._done = False
        self._problem: PacelineError | None = None

    def done(self) -> bool:
        if self._request is not None:
            self._update(self._request.Test)
        if self._problem is not None:
            raise self._problem
        return self._done

    def cancel(self) -> None:
        if self._request is not None:
            self._request.Cancel()
            self._update(self._request.Wait)  # frees it; receives what had arrived before

    def _update(self, ask: Callable[[MPI.Status], bool]) -> None:
        """Ask MPI for the state; a completed request must not be asked again."""
        try:
            if not ask(self._status):
                return
            if not self._status.Is_cancelled():
                self._done, self.source = True, self._status.Get_source()
        except MPI.Exception as error:
            self._problem = self._explain(error)
        self._request = None


class _PendingSend:
    """A send that was started."""

    def __init__(self, request: MPI.Request, source: int, explain: Explain) -> None:
        self._request, self.source, self._explain = request, source, explain
        self._done = False

    def done(self) -> bool:
        try:
            self._done = self._done or bool(self._request.Test())
        except MPI.Exception as error:
            raise self._explain(error) from None
        return self._done

    def cancel(self) -> None:
        raise WorldError("a message that was sent cannot be cancelled")


def _pieces(buffer: Buffer, longest: int) -> list[Buffer]:
    return split_buffer(check_buffer(buffer).reshape(-1), longest)


def _has_fabric() -> bool:
    """Whether the node has a network that MPI drives better than we can: more than Ethernet."""
    return any(any(Path("/sys/class", kind).glob("*")) for kind in ("infiniband", "cxi"))


def _whole(buffer: Buffer) -> Buffer:
    """Refuse a message that had to be divided: its parts could match different receives."""
    if check_buffer(buffer).size > MAX_MESSAGE:
        raise ValueError(
            f"a message has {buffer.size} elements, and MPI takes at most {MAX_MESSAGE}; "
            "divide it, or send wider elements"
        )
    return buffer.reshape(-1)


class Library(NamedTuple):
    """The MPI library that mpi4py has loaded."""

    path: str | None
    version: str
    standard: str
    ulfm: bool | None
    """Whether it was built with fault tolerance (ULFM); None if its file is not known."""


def library() -> Library:
    """Which MPI this is. The call starts nothing, but importing this module does, unless the
    environment has MPI4PY_RC_INITIALIZE=0."""
    maps = Path("/proc/self/maps")  # Linux only
    lines = maps.read_text().splitlines() if maps.exists() else []
    files = (line.split(maxsplit=5)[5] for line in lines if "/libmpi" in line)
    path = next((name for name in files if Path(name).name.startswith("libmpi")), None)
    version = str(MPI.Get_library_version()).strip("\0 \n")
    # MPICH has functions of these names, too, but only emulates them.
    ulfm = None if path is None else hasattr(ctypes.CDLL(path), "MPIX_Comm_revoke")
    standard = ".".join(map(str, MPI.Get_version()))
    return Library(path, version, standard, ulfm and version.startswith("Open MPI"))


def world_of_mpi() -> MPIWorld:
    """All ranks that the launcher started, on a communicator of our own."""
    return MPIWorld(MPI.COMM_WORLD.Dup())


class AllRanks:
    """All ranks of MPI, to end them; unlike a world, it is made without communicating."""

    def __init__(self) -> None:
        self.rank: int = MPI.COMM_WORLD.Get_rank()
        self.size: int = MPI.COMM_WORLD.Get_size()
        self.node: str = MPI.Get_processor_name()

    def abort(self, code: int = 1) -> NoReturn:
        MPI.COMM_WORLD.Abort(code)
        os._exit(code)
