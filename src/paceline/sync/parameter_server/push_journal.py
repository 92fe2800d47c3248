"""Pushes that are under way, in memory that outlives their workers.

A worker that is lost in the middle of a push has given a part of it to the centre. The whole push
lies here, with a copy of the chunk that it was changing: another worker finishes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.comm import World
from paceline.core.chunks import Span, length
from paceline.core.vectors import Vector
from paceline.rules import PushTerms, State

_NUMBER, _DONE, _KEPT, _FORCE, _STEPS, _FIELDS = range(6)
_LINE = 8
_NONE = -1


class PushJournal:
    """A line for each worker, room for its push and for one chunk, and a mark for each chunk."""

    def __init__(
        self, world: World, centre: Vector, pieces: Sequence[Span], states: Sequence[State]
    ) -> None:
        """All workers make it together; `states` go with the pieces."""
        self._pieces, self._states, self._centre = pieces, states, centre
        ranks, longest = world.size, max(map(length, pieces), default=0)
        room = max((sum(a.nbytes for a in state.values()) for state in states), default=0)
        sizes = [
            ranks * _LINE * 8,
            -(-len(pieces) // 8) * 64,
            ranks * (-(-room // 8) * 8),
            ranks * longest * centre.itemsize,
            ranks * centre.nbytes,
        ]
        ends = np.cumsum([-(-size // 64) * 64 for size in sizes]).tolist()
        self._memory = world.node_memory(ends[-1], locks=0)
        memory, starts = self._memory.bytes, [0, *ends]
        parts = [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        self._lines = parts[0].view(np.float64).reshape(ranks, _LINE)
        self._changing = parts[1].view(np.int64)
        """By chunk: 0, or the worker that changes it, counted from 1."""
        self._kept_states = parts[2].reshape(ranks, -1)
        self._kept = parts[3].view(centre.dtype).reshape(ranks, longest)
        self.pushes: Vector = parts[4].view(centre.dtype).reshape(ranks, centre.size)
        """What each worker pushes."""

    def begin(self, worker: int, number: int, terms: PushTerms) -> None:
        """A worker's push is here; it counts once the ledger knows of this number of pushes."""
        line = self._lines[worker]
        line[_DONE : _STEPS + 1] = 0, _NONE, terms.force, terms.steps
        line[_NUMBER] = number

    def keep(self, worker: int, done: int, index: int) -> None:
        """A worker changes this chunk next, having changed so many; it holds the chunk's lock."""
        self.mend(index)
        piece, at = self._pieces[index], 0
        self._kept[worker, : length(piece)] = self._centre[piece]
        for array in self._states[index].values():
            self._kept_states[worker, at : at + array.nbytes] = array.view(np.uint8)
            at += array.nbytes
        self._lines[worker, _KEPT] = done
        self._changing[index] = worker + 1

    def done(self, worker: int, done: int, index: int) -> None:
        """It has changed it."""
        self._lines[worker, _DONE] = done + 1
        self._changing[index] = 0

    def mend(self, index: int) -> None:
        """Undo what a lost worker has half done to a chunk; under the chunk's lock."""
        worker = int(self._changing[index]) - 1
        if worker < 0:
            return
        if self._lines[worker, _KEPT] == self._lines[worker, _DONE]:  # else it was just done
            piece, at = self._pieces[index], 0
            self._centre[piece] = self._kept[worker, : length(piece)]
            for array in self._states[index].values():
                array.view(np.uint8)[:] = self._kept_states[worker, at : at + array.nbytes]
                at += array.nbytes
        self._changing[index] = 0

    def unfinished(self, worker: int, pushes: int) -> tuple[int, PushTerms] | None:
        """How many chunks a worker had changed in a push that the ledger knows of, and its terms;
        None if it had changed all."""
        number, done, _, force, steps = self._lines[worker, :_FIELDS].tolist()
        if number != pushes or not number or done == len(self._pieces):
            return None
        return int(done), PushTerms(force=force, steps=int(steps))

    def close(self) -> None:
        """Give the memory back."""
        del self._lines, self._changing, self._kept, self._kept_states, self.pushes
        self._memory.close()
