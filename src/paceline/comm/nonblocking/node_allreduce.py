"""The all-reduce of ranks that share nodes, in steps between which other exchanges may run.

As in `node_sum.py` each rank adds up its own slice of the vector in the node's memory, sums it
with the same slice of the other nodes, and shows the result. The vector streams through three
stages. Between two barriers a rank shows a chunk in one stage, adds up the chunk before it in
another, and takes the sum of the chunk before that from the third: one barrier per chunk.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.comm.node_memory import FileMemory, find_place, make_file, open_file
from paceline.comm.nonblocking.async_comm import AsyncComm, Steps
from paceline.comm.world import Buffer
from paceline.core.vectors import ALIGNMENT_BYTES
from paceline.errors import WorldError

SMALL_BYTES = 16 * 1024
"""Up to here one message of MPI's own is quicker than two barriers."""

STAGE_BYTES = 1024 * 1024
"""Memory per rank and stage: what is shown at once. It should stay in the cache."""

_STAGES = 3
_LINE = 64
_PATH_BYTES = 4096


class AsyncNodeAllreduce:
    """Sums vectors over the ranks of a line, by way of the memory of its nodes."""

    def __init__(
        self, together: AsyncComm, neighbours: AsyncComm, across: AsyncComm | None, owners: int
    ) -> None:
        """`neighbours` are the ranks of this node, `across` those that own the same slice on the
        other nodes; `owners` is how many ranks of each node own one."""
        self._together, self._local, self._across = together, neighbours, across
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
        """Overwrite every rank's buffer, one-dimensional, by the sum over all ranks.

        False on all ranks, and nothing done, if there is no memory for it.
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
                self._show(stages[(first + phase) % _STAGES], chunks[phase])
            if 1 <= phase <= len(chunks):
                yield from self._add(stages[(first + phase - 1) % _STAGES], chunks[phase - 1])
            if phase >= 2:
                self._take(stages[(first + phase - 2) % _STAGES], chunks[phase - 2])
            if phase <= len(chunks):
                yield from self._local.until(self._local.barrier())
                yield True
            if phase == 0:
                self._check_alike()
        return True

    def _open(self) -> Steps[None]:
        """Map memory with the ranks of the node; all ranks of the line or none get it."""
        neighbours, name = self._local, np.zeros(_PATH_BYTES, np.uint8)
        ranks = neighbours.size
        heads = ranks * _LINE
        nbytes = heads + _STAGES * ranks * STAGE_BYTES
        if neighbours.rank == 0:
            path = _attempt_to_make(nbytes)
            name[: len(path)] = np.frombuffer(path, np.uint8)
        yield from neighbours.until(neighbours.broadcast(name, 0))
        text = name.tobytes().rstrip(b"\0").decode()
        memory = _attempt_to_open(text, nbytes)
        good = np.array([memory is not None], np.int8)
        yield from self._together.until(self._together.all_reduce(good, "min"))
        if neighbours.rank == 0 and text:
            Path(text).unlink(missing_ok=True)
        self._opened = True
        if memory is None or not good[0]:
            return
        self._memory = memory
        self._heads = memory.bytes[:heads].view(np.int64).reshape(ranks, -1)
        self._stages = memory.bytes[heads:].reshape(_STAGES, ranks, STAGE_BYTES)

    def _check_alike(self) -> None:
        heads = self._heads[:, :2].tolist()
        if heads.count(heads[0]) < len(heads):
            told = ", ".join(f"{nbytes} bytes" for nbytes, _ in heads)
            raise WorldError(f"the ranks of a node sum tensors that differ in size or type: {told}")

    def _show(self, stage: Buffer, chunk: Buffer) -> None:
        """Let the others see the slices that they own."""
        rank = self._local.rank
        own = self._slice_of(chunk, rank)
        stage[rank, : own.start] = chunk[: own.start]
        stage[rank, own.stop : chunk.size] = chunk[own.stop :]

    def _add(self, stage: Buffer, chunk: Buffer) -> Steps[None]:
        """Add up the own slice, in the order of the ranks, over all nodes."""
        rank = self._local.rank
        own = self._slice_of(chunk, rank)
        if own.start == own.stop:
            return
        mine = stage[rank, own]
        rows = [chunk[own] if at == rank else row[own] for at, row in enumerate(stage)]
        with np.errstate(all="ignore"):  # numbers may overflow, as they do in MPI, in silence
            np.add(rows[0], rows[1], out=mine) if len(rows) > 1 else np.copyto(mine, rows[0])
            for row in rows[2:]:
                np.add(mine, row, out=mine)
        if self._across is not None:
            yield from self._across.until(self._across.all_reduce(mine, "sum"))

    def _take(self, stage: Buffer, chunk: Buffer) -> None:
        """Read the sums that the owners have made."""
        for owner in range(self._owners):
            piece = self._slice_of(chunk, owner)
            chunk[piece] = stage[owner, piece]

    def _slice_of(self, chunk: Buffer, owner: int) -> slice:
        """The part of a chunk that a rank of the node adds up; it begins on a cache line."""
        if owner >= self._owners:
            return slice(chunk.size, chunk.size)
        line = ALIGNMENT_BYTES // chunk.itemsize
        edge = [chunk.size * at // self._owners // line * line for at in (owner, owner + 1)]
        return slice(edge[0], chunk.size if owner == self._owners - 1 else edge[1])

    def close(self) -> None:
        """Give the memory and the lines of its own back, for this rank."""
        if self._memory is not None:
            del self._heads, self._stages
            self._memory.close()
        for line in (self._across, self._local):
            if line is not None and line is not self._together:
                line.close()


def _attempt_to_make(nbytes: int) -> bytes:
    """The path of a new file, empty if there is no room for one."""
    try:
        return str(make_file(find_place(), nbytes)).encode()
    except (WorldError, OSError):
        return b""


def _attempt_to_open(path: str, nbytes: int) -> FileMemory | None:
    try:
        return open_file(Path(path), nbytes, locks=0) if path else None
    except (OSError, ValueError):
        return None
