"""An epoch cut into numbered micro-batches, for ranks that take the next one when they are ready.

Who takes which is not known in advance, only that each is taken once: numbers come from a counter
that all ranks share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.core.vectors import Vector
from paceline.data.sampling.balance import Places


class DealtEpoch:
    """Numbers of micro-batches, in steps of all ranks together.

    >>> epoch = DealtEpoch(np.arange(7), edges=[0, 4, 7], micro_batch=2)
    >>> [[epoch.places(number).tolist() for number in epoch.numbers(step)] for step in range(2)]
    [[[0, 1], [2, 3]], [[4, 5], [6]]]
    """

    def __init__(
        self,
        places: Places,
        edges: Sequence[int],
        micro_batch: int,
        costs: Vector | None = None,
    ) -> None:
        """Step s has `places[edges[s] : edges[s + 1]]`. With `costs`, of these places, the longest
        of a step come first: what is taken last is short, and ranks end at about the same time."""
        self._places, self._micro_batch = places, micro_batch
        self._edges = np.array(edges, np.int64)
        self._firsts = np.concatenate([[0], np.cumsum(-(-np.diff(self._edges) // micro_batch))])
        if costs is not None:
            self._places = _longest_first(places, costs, self._edges)

    def __len__(self) -> int:
        """Steps."""
        return len(self._edges) - 1

    @property
    def total(self) -> int:
        """Micro-batches."""
        return int(self._firsts[-1])

    def numbers(self, step: int) -> range:
        """The micro-batches of the step."""
        return range(int(self._firsts[step]), int(self._firsts[step + 1]))

    def places(self, number: int) -> Places:
        """Those of a micro-batch."""
        step = int(np.searchsorted(self._firsts, number, side="right")) - 1
        first = self._edges[step] + (number - self._firsts[step]) * self._micro_batch
        return self._places[first : min(first + self._micro_batch, self._edges[step + 1])]

    def step(self, step: int) -> Places:
        """The places of the step."""
        return self._places[self._edges[step] : self._edges[step + 1]]


def _longest_first(places: Places, costs: Vector, edges: Places) -> Places:
    """Sort each step by descending costs; equal ones keep their order."""
    steps = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    result: Places = places[np.lexsort((-costs, steps))]
    return result


class DealtSplit:
    """A dealt epoch as a split: who takes what is open, so all of a step is written to rank 0."""

    def __init__(self, epoch: DealtEpoch, size: int, samples: int) -> None:
        """`samples` are of the whole epoch, of which this may be the rest."""
        self.epoch, self.size, self.samples = epoch, size, samples

    def __len__(self) -> int:
        return len(self.epoch)

    def batches(self, rank: int) -> int:
        return len(self)

    def share(self, step: int, rank: int) -> Places | slice:
        return self.epoch.step(step) if rank == 0 else slice(0, 0)
