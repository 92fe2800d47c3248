"""How far each rank of a node has come in a step, in memory that outlives it.

Parameters that a node's ranks share are moved slice by slice, each by its owner. If an owner is
lost half-way, another rank finishes its slices: the journal says which chunks are done, and has a
copy of the one that was being moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.comm import World
from paceline.core.chunks import Span, length
from paceline.core.vectors import Vector
from paceline.frameworks.replica import Chunk

_MARK, _DONE, _KEPT, _CHUNKS, _START, _STOP = range(6)
_LINE = 8
_NONE = -1


class StepJournal:
    """A line for each rank of the node, and room for one chunk of each."""

    def __init__(
        self,
        world: World,
        local: World,
        chunks: Sequence[Chunk],
        parameters: Vector,
        slots: Mapping[str, Vector],
    ) -> None:
        """All ranks make it together; `chunks` are those that this rank moves."""
        own = max((length(chunk.piece) for chunk in chunks), default=0)
        longest = max(1, *world.allgather_values(own))
        self._vectors = [parameters, *slots.values()]
        shape = (local.size, len(self._vectors), longest)
        lines = local.size * _LINE * 8
        nbytes = int(np.prod(shape)) * parameters.itemsize
        self._memory = world.node_memory(lines + nbytes, locks=0)
        self._lines = self._memory.bytes[:lines].view(np.int64).reshape(local.size, _LINE)
        self._kept = self._memory.bytes[lines:].view(parameters.dtype).reshape(shape)
        self._rank = local.rank

    def begin(self, mark: int, chunks: int, rank: int | None = None) -> None:
        """A step begins, in which a rank (default: this one) moves so many chunks."""
        line = self._lines[self._rank if rank is None else rank]
        line[_DONE : _CHUNKS + 1] = 0, _NONE, chunks
        line[_MARK] = mark

    def keep(self, number: int, piece: Span, rank: int | None = None) -> None:
        """This chunk is moved next."""
        at, size = self._rank if rank is None else rank, length(piece)
        for kept, vector in zip(self._kept[at], self._vectors, strict=True):
            kept[:size] = vector[piece]
        line = self._lines[at]
        line[_START : _STOP + 1] = piece.start, piece.stop
        line[_KEPT] = number

    def done(self, number: int, rank: int | None = None) -> None:
        """It has been moved."""
        self._lines[self._rank if rank is None else rank, _DONE] = number + 1

    def has_begun(self, rank: int, mark: int) -> bool:
        return bool(self._lines[rank, _MARK] == mark)

    def is_done(self, mark: int) -> bool:
        """Whether every rank of the node has moved all its chunks in this step."""
        lines = self._lines
        return bool(((lines[:, _MARK] == mark) & (lines[:, _DONE] == lines[:, _CHUNKS])).all())

    def rest_of(self, rank: int, pieces: Sequence[Span]) -> tuple[int, list[Span]]:
        """How many chunks a rank has moved in the step that it has begun, and what is left of its
        pieces; the chunk that it was moving is as it was before."""
        _, done, kept, chunks, start, stop = self._lines[rank][: _STOP + 1].tolist()
        if done == chunks or kept == _NONE:
            return done, [] if done == chunks else list(pieces)
        if kept == done:
            chunk = slice(start, stop)
            for copy, vector in zip(self._kept[rank], self._vectors, strict=True):
                vector[chunk] = copy[: length(chunk)]
        first = start if kept == done else stop
        number = next(n for n, piece in enumerate(pieces) if piece.start <= start < piece.stop)
        rest = [slice(first, pieces[number].stop), *pieces[number + 1 :]]
        return done, [piece for piece in rest if length(piece)]

    def close(self) -> None:
        """Give the memory back."""
        del self._lines, self._kept
        self._memory.close()
