"""The all-reduce of ranks that share nodes: through memory inside a node, by slices between nodes.

Every rank sees the buffers of its node. It sums its own slice of the vector over the node, chunk by
chunk while the chunk is in the cache, all-reduces that slice with its owners on the other nodes,
and writes the result to all buffers of its node. So nothing is sent inside a node, every link
between nodes carries the vector once, and the ranks of a node share the additions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.comm.allreduce.slices import add_in_order, owner_slices
from paceline.comm.nodes import nodes_of
from paceline.comm.world import Buffer, NodeMemory, World
from paceline.core.chunks import Span, chunks
from paceline.core.vectors import ALIGNMENT_BYTES
from paceline.errors import WorldError

SMALL_BYTES = 16 * 1024
"""Up to this size MPI's own all-reduce is faster than two barriers and the check of sizes."""

CHUNK_BYTES = 256 * 1024
"""Summed at once: a chunk and its sum stay in a core's own cache."""

LONG_BYTES = 32 * 1024 * 1024
"""From this size on, summing through the stages, in the cache, beats MPI on one node."""

STAGE_BYTES = 256 * 1024
"""Memory per rank, through which buffers pass that other ranks cannot see."""
FAR_STAGE_BYTES = 4 * 1024 * 1024
"""The same on several nodes: a network needs longer messages than a cache."""

_KIND, _START, _NBYTES, _DTYPE, _FIELDS = range(5)
_STAGED = -1


class NodeBuffers:
    """Buffers of all ranks of a node, made together; one of them is this rank's."""

    def __init__(self, memory: NodeMemory, nbytes: int, ranks: int, rank: int) -> None:
        self._memory = memory
        stride = _round_up(nbytes)
        rows = memory.bytes[: ranks * stride].reshape(ranks, stride)
        self.rows: list[npt.NDArray[np.uint8]] = [row[:nbytes] for row in rows]
        self.mine = self.rows[rank]
        self._begin = self.mine.__array_interface__["data"][0]

    def start_of(self, buffer: Buffer) -> int | None:
        """The offset of these elements in this rank's buffer; None if they lie elsewhere."""
        start: int = buffer.__array_interface__["data"][0] - self._begin
        return start if start >= 0 and start + buffer.nbytes <= self.mine.nbytes else None

    def close(self) -> None:
        """Release the memory for this rank."""
        del self.rows, self.mine
        self._memory.close()


class NodeAllreduce:
    """Sums vectors over all ranks of a world, through the memory of their nodes.

    Ranks are added in their order, so that all of them get the same bits.
    """

    def __init__(self, world: World) -> None:
        """Collective; a WorldError on all ranks if there is too little memory."""
        self._world, self._nodes = world, nodes_of(world)
        self._local = self._nodes.local
        ranks = self._local.size
        heads = ranks * ALIGNMENT_BYTES
        stage = STAGE_BYTES if self._nodes.count == 1 else FAR_STAGE_BYTES
        self._memory = world.node_memory(heads + 2 * ranks * stage, locks=0)
        self._heads = self._memory.bytes[:heads].view(np.int64).reshape(ranks, -1)
        self._stages = self._memory.bytes[heads:].reshape(2, ranks, stage)
        self._buffers: dict[int, NodeBuffers] = {}
        self._made = 0

    def make_buffer(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Zeroed memory that the other ranks of the node can reach; collective."""
        ranks = self._local.size
        memory = self._world.node_memory(ranks * _round_up(nbytes), locks=0)
        buffers = NodeBuffers(memory, nbytes, ranks, self._local.rank)
        self._made += 1
        self._buffers[self._made] = buffers
        return buffers.mine

    def drop_buffer(self, buffer: Buffer) -> None:
        """Forget a buffer; this rank's views of it stay valid until they are dropped."""
        for number, buffers in self._buffers.items():
            if buffers.start_of(buffer) == 0:
                del self._buffers[number]
                buffers.close()
                return

    def all_reduce(self, buffer: Buffer) -> bool:
        """Overwrite every rank's buffer, one-dimensional, with the sum over all ranks.

        Returns False on all ranks, with nothing done, if messages are faster.
        """
        number, start = self._find(buffer)
        head = self._heads[self._local.rank]
        head[:_FIELDS] = number, start, buffer.nbytes, buffer.dtype.num
        self._local.barrier()
        heads = self._heads[:, :_FIELDS].tolist()
        if heads.count(heads[0]) < len(heads):
            self._check_same_size(heads)
            number = _STAGED
        if number == _STAGED:
            if self._nodes.count == 1 and buffer.nbytes < LONG_BYTES:
                return False
            self._sum_staged(buffer)
            return True
        end = start + buffer.nbytes
        rows = [row[start:end].view(buffer.dtype) for row in self._buffers[number].rows]
        self._sum_own(rows, self._nodes.slice_of(buffer.size, buffer.itemsize))
        self._local.barrier()
        return True

    def _sum_own(self, rows: Sequence[Buffer], piece: Span) -> None:
        """Sum this rank's piece over all ranks and write it to all rows of the node."""
        if self._nodes.cross is None:
            for part in chunks(piece, CHUNK_BYTES // rows[0].itemsize):
                parts = [row[part] for row in rows]
                total = parts[0]
                add_in_order(parts, total)
                for other in parts:
                    if other is not total:
                        other[:] = total
            return
        for part in chunks(piece, CHUNK_BYTES // rows[0].itemsize):
            parts = [row[part] for row in rows]
            add_in_order(parts, parts[0])
        total = rows[0][piece]
        self._nodes.cross.all_reduce(total)
        for row in rows[1:]:
            row[piece] = total

    def _find(self, buffer: Buffer) -> tuple[int, int]:
        for number, buffers in self._buffers.items():
            start = buffers.start_of(buffer)
            if start is not None:
                return number, start
        return _STAGED, 0

    def _check_same_size(self, heads: list[list[int]]) -> None:
        same = len({(head[_NBYTES], head[_DTYPE]) for head in heads}) == 1
        if not same or self._nodes.count > 1:  # other nodes would choose another way
            sizes = ", ".join(f"{head[_NBYTES]} bytes" for head in heads)
            raise WorldError(
                f"the ranks of {self._world.node} sum vectors that differ in size, type or place: "
                f"{sizes}; all ranks must exchange the same model"
            )

    def _sum_staged(self, buffer: Buffer) -> None:
        """Sum piece by piece through the stages, which stay in the cache.

        Two stages alternate, so that nobody overwrites what a slower rank has yet to read.
        """
        stages = self._stages.view(buffer.dtype)
        for turn, part in enumerate(chunks(slice(0, buffer.size), stages.shape[2])):
            self._sum_through(list(stages[turn % 2]), buffer[part])

    def _sum_through(self, stage: list[Buffer], buffer: Buffer) -> None:
        """Publish the others' slices, sum this rank's own, publish the sum, read the others'."""
        rank = self._local.rank
        pieces = owner_slices(buffer.size, buffer.itemsize, self._nodes.owners)
        for owner, piece in enumerate(pieces):
            if owner != rank:
                stage[rank][piece] = buffer[piece]
        self._local.barrier()
        if self._nodes.owns_slice:
            own = pieces[rank]
            rows = [buffer[own] if at == rank else row[own] for at, row in enumerate(stage)]
            total = stage[rank][own]
            add_in_order(rows, total)
            if self._nodes.cross is not None:
                self._nodes.cross.all_reduce(total)
        self._local.barrier()
        for owner, piece in enumerate(pieces):
            buffer[piece] = stage[owner][piece]


def _round_up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
