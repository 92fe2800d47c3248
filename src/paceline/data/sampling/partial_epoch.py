"""What is left of an interrupted epoch, and how it is split among the ranks of the resumed run.

An epoch that nothing interrupts is one EpochRemainder: all its samples, split among so many ranks
in batches of one size. A run that is resumed with as many ranks and the same batch size continues
in it. With another number of ranks or batch size, what no rank has taken becomes a new one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.data.sampling.shards import Shard, StepPlan, check_enough, plan_steps, smallest_step
from paceline.errors import CheckpointError

Ranges = tuple[tuple[int, int | None], ...]
"""Places in the order of an epoch, from the first up to the second; None is the end of a stream."""


@dataclass(frozen=True)
class EpochRemainder:
    """Samples of one epoch, split among `size` ranks in batches of `batch_size`."""

    size: int
    batch_size: int
    ranges: Ranges | None = None
    """Which of the epoch's samples; None: all of them."""

    @property
    def first(self) -> int:
        """Where in a stream it begins."""
        return self.ranges[0][0] if self.ranges else 0

    def plan(self, samples: int) -> StepPlan:
        """Its steps, in an epoch of so many samples."""
        if self.ranges is None:
            return plan_steps(samples, self.size, self.batch_size)
        left = sum(last - first for first, last in _bounded(self.ranges, samples))
        few = left < smallest_step(self.size, self.batch_size)
        return StepPlan(
            left, self.size, self.batch_size, sharers=max(1, left // 2) if few else None
        )

    def pick(self, order: np.ndarray) -> np.ndarray:
        """Its part of the whole epoch's order."""
        if self.ranges is None:
            return order
        parts = [order[first:last] for first, last in _bounded(self.ranges, len(order))]
        return np.concatenate(parts) if parts else order[:0]

    def enter_stream(self, taken: int) -> int:
        """How many samples of a stream come before the batch that follows `taken` ones."""
        return self.first + taken * self.size * self.batch_size

    def rest_of_stream(self, taken: Sequence[int]) -> Ranges:
        """What is left of a stream when each rank has taken so many batches."""
        if len(set(taken)) > 1:
            raise CheckpointError(
                "the ranks were at different positions in a stream, so no other number of ranks "
                f"can continue from there; start {self.size} ranks"
            )
        return ((self.enter_stream(taken[0]), None),)


def check_remainder(remainder: EpochRemainder, shard: Shard, samples: int) -> None:
    """A whole epoch needs a sample for each rank; what is left of one does not."""
    assert remainder.size == shard.size, "an epoch is split among all ranks"
    if remainder.ranges is None:
        check_enough(samples, remainder.size)


def _bounded(ranges: Ranges, samples: int) -> list[tuple[int, int]]:
    return [(first, samples if last is None else min(last, samples)) for first, last in ranges]


def as_ranges(places: np.ndarray) -> Ranges:
    """Ascending places as ranges."""
    if not len(places):
        return ()
    breaks = np.flatnonzero(np.diff(places) != 1)
    firsts = places[np.concatenate([[0], breaks + 1])]
    lasts = places[np.concatenate([breaks, [len(places) - 1]])] + 1
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))
