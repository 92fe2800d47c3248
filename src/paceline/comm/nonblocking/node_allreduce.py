"""The all-reduce of ranks that share nodes, in steps between which other exchanges may run.

As in `allreduce/node.py`, each rank sums its own slice of the vector in the node's memory, adds
the same slice of the other nodes, and publishes the result. The vector streams through three
stages. Between two barriers a rank publishes a chunk in one stage, sums the chunk before it in
another, and reads the sum of the chunk before that from the third: one barrier per chunk.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.comm.allreduce.slices import add_in_order, owner_slice, owner_slices
from paceline.comm.node_memory import FileMemory, find_place, make_file, open_file
from paceline.comm.nonblocking.async_comm import AsyncComm, Steps
from paceline.comm.world import Buffer
from paceline.core.chunks import Span
from paceline.core.vectors import ALIGNMENT_BYTES
from paceline.errors import WorldError

SMALL_BYTES = 16 * 1024
"""Up to this size MPI's own all-reduce is faster than two barriers."""

STAGE_BYTES = 1024 * 1024
"""Memory per rank and stage, the size of a chunk. It should stay in the cache."""

_STAGES = 3
_PATH_BYTES = 4096


class AsyncNodeAllreduce:
    """Sums vectors over all ranks of a communicator, through the memory of their nodes."""

    def __init__(
        self, comm: AsyncComm, local: AsyncComm, cross: AsyncComm | None, owners: int
    ) -> None:
        """`local` has the ranks of this node, `cross` the owners of this rank's slice, one on each
        node; `owners` is how many ranks of each node own a slice."""
        self._comm, self._local, self._cross = comm, local, cross
        self._owners = owners
        self._memory: FileMemory | None = None
        self._opened = False
        self._shown = 0
        self._heads: npt.NDArray[np.int64]
        self._stages: npt.NDArray[np.uint8]

    def takes(self, buffer: Buffer) -> bool:
        """Whether this buffer is summed here; the same on all ranks."""
        return buffer.nbytes > SMALL_BYTES and not (self._opened and self._memory is None)

    def all_reduce(self, buffer: Buffer) -> Steps[bool]:
        """Overwrite every rank's buffer, one-dimensional, with the sum over all ranks.

        Returns False on all ranks, with nothing done, if there is no memory for it.
        """
        if not self._opened:
            yield from self._open()
        if self._memory is None:
            return False
        self._heads[self._local.rank, :2] = buffer.nbytes, buffer.dtype.num
        stages = self._stages.view(buffer.dtype)
        length = stages.shape[2]
        chunks = [buffer[at : at + length] for at in range(0, buffer.size, length)]
        first, self._shown = self._shown, self._shown + len(chunks)
        for phase in range(len(chunks) + 2):
            if phase < len(chunks):
                self._publish(stages[(first + phase) % _STAGES], chunks[phase])
            if 1 <= phase <= len(chunks):
                yield from self._sum(stages[(first + phase - 1) % _STAGES], chunks[phase - 1])
            if phase >= 2:
                self._read(stages[(first + phase - 2) % _STAGES], chunks[phase - 2])
            if phase <= len(chunks):
                yield from self._local.wait_for_all(self._local.barrier())
                yield True
            if phase == 0:
                self._check_same_size()
        return True

    def _open(self) -> Steps[None]:
        """Map memory together with the ranks of the node; either all ranks get it or none."""
        local, name = self._local, np.zeros(_PATH_BYTES, np.uint8)
        ranks = local.size
        heads = ranks * ALIGNMENT_BYTES
        nbytes = heads + _STAGES * ranks * STAGE_BYTES
        if local.rank == 0:
            path = _try_to_make(nbytes)
            name[: len(path)] = np.frombuffer(path, np.uint8)
        yield from local.wait_for_all(local.broadcast(name, 0))
        text = name.tobytes().rstrip(b"\0").decode()
        memory = _try_to_open(text, nbytes)
        good = np.array([memory is not None], np.int8)
        yield from self._comm.wait_for_all(self._comm.all_reduce(good, "min"))
        if local.rank == 0 and text:
            Path(text).unlink(missing_ok=True)
        self._opened = True
        if memory is None or not good[0]:
            return
        self._memory = memory
        self._heads = memory.bytes[:heads].view(np.int64).reshape(ranks, -1)
        self._stages = memory.bytes[heads:].reshape(_STAGES, ranks, STAGE_BYTES)

    def _check_same_size(self) -> None:
        heads = self._heads[:, :2].tolist()
        if heads.count(heads[0]) < len(heads):
            sizes = ", ".join(f"{nbytes} bytes" for nbytes, _ in heads)
            raise WorldError(
                f"the ranks of a node sum tensors that differ in size or type: {sizes}"
            )

    def _publish(self, stage: Buffer, chunk: Buffer) -> None:
        """Write all but this rank's own slice where the other ranks see it."""
        rank = self._local.rank
        own = self._own_slice(chunk)
        stage[rank, : own.start] = chunk[: own.start]
        stage[rank, own.stop : chunk.size] = chunk[own.stop :]

    def _sum(self, stage: Buffer, chunk: Buffer) -> Steps[None]:
        """Sum this rank's slice over all nodes."""
        rank = self._local.rank
        own = self._own_slice(chunk)
        if own.start == own.stop:
            return
        total = stage[rank, own]
        rows = [chunk[own] if at == rank else row[own] for at, row in enumerate(stage)]
        with np.errstate(all="ignore"):  # sums overflow silently, as they do in MPI
            add_in_order(rows, total)
        if self._cross is not None:
            yield from self._cross.wait_for_all(self._cross.all_reduce(total, "sum"))

    def _read(self, stage: Buffer, chunk: Buffer) -> None:
        """Copy the owners' sums."""
        for owner, piece in enumerate(owner_slices(chunk.size, chunk.itemsize, self._owners)):
            chunk[piece] = stage[owner, piece]

    def _own_slice(self, chunk: Buffer) -> Span:
        """The part of a chunk that this rank sums; empty if it owns none."""
        return owner_slice(chunk.size, chunk.itemsize, self._owners, self._local.rank)

    def close(self) -> None:
        """Free this rank's memory and its own communicators."""
        if self._memory is not None:
            del self._heads, self._stages
            self._memory.close()
        for comm in (self._cross, self._local):
            if comm is not None and comm is not self._comm:
                comm.close()


def _try_to_make(nbytes: int) -> bytes:
    """The path of a new file, empty if there is no space for one."""
    try:
        return str(make_file(find_place(), nbytes)).encode()
    except (WorldError, OSError):
        return b""


def _try_to_open(path: str, nbytes: int) -> FileMemory | None:
    try:
        return open_file(Path(path), nbytes, locks=0) if path else None
    except (OSError, ValueError):
        return None
