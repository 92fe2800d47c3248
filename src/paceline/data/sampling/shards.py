"""Which rank gets which samples: pure arithmetic, the same on every rank.

An epoch is cut into steps of size x batch_size samples, and each step is split among the ranks in
contiguous, nearly equal parts. A last remainder too small to give every rank two samples joins
the step before it: no sample is left out or repeated, no rank is ever without one, and batch
normalisation, which fails on a single sample, always has more.
"""

from dataclasses import dataclass

import numpy as np

from paceline.data.sources import Source
from paceline.errors import ConfigError, DataError


@dataclass(frozen=True)
class Shard:
    """One rank of those that share the samples."""

    rank: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"shard of rank {self.rank}, expected 0 <= rank < size ({self.size})")


@dataclass(frozen=True)
class StepPlan:
    """The steps of one epoch.

    >>> plan = plan_steps(samples=23, size=2, batch_size=5)
    >>> [[plan.bounds(step, rank) for rank in range(2)] for step in range(len(plan))]
    [[(0, 5), (5, 10)], [(10, 17), (17, 23)]]
    """

    samples: int
    size: int
    batch_size: int
    least: int | None = None
    """The fewest samples that make a last step of their own; None: `smallest_step`."""
    sharers: int | None = None
    """Ranks that get samples, if there are too few for all."""

    @property
    def world_batch(self) -> int:
        """The samples of all ranks in one full step."""
        return self.size * self.batch_size

    @property
    def ranks_with_samples(self) -> int:
        """How many ranks get samples; the others have none in any step."""
        return self.size if self.sharers is None else self.sharers

    def __len__(self) -> int:
        full, rest = divmod(self.samples, self.world_batch)
        least = self.least or smallest_step(self.size, self.batch_size)
        own_step = rest >= least or (rest > 0 and full == 0)
        return full + own_step

    def span(self, step: int) -> tuple[int, int]:
        """Where the step of the whole world begins and ends in the epoch's order."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of an epoch of {len(self)} steps")
        first = step * self.world_batch
        last = self.samples if step == len(self) - 1 else first + self.world_batch
        return first, last

    def bounds(self, step: int, rank: int) -> tuple[int, int]:
        """Where the rank's part of the step begins and ends in the epoch's order."""
        first, last = self.span(step)
        if rank >= self.ranks_with_samples:
            return last, last
        begin, end = rank_bounds(last - first, rank, self.ranks_with_samples)
        return first + begin, first + end


def plan_steps(samples: int, size: int, batch_size: int) -> StepPlan:
    """Cut an epoch of so many samples into steps of `size` ranks."""
    check_batch_size(batch_size)
    check_enough(samples, size)
    return StepPlan(samples, size, batch_size)


def smallest_step(size: int, batch_size: int) -> int:
    """The fewest samples that make a last step of its own: one rank alone takes any remainder.

    >>> smallest_step(size=4, batch_size=32), smallest_step(size=1, batch_size=32)
    (8, 1)
    """
    return size * min(2, batch_size) if size > 1 else 1


def rank_bounds(samples: int, rank: int, size: int) -> tuple[int, int]:
    """Begin and end of the rank's contiguous part; parts differ by at most one sample.

    >>> [rank_bounds(7, rank, 3) for rank in range(3)]
    [(0, 3), (3, 5), (5, 7)]
    """
    base, extra = divmod(samples, size)
    begin = rank * base + min(rank, extra)
    return begin, begin + base + (rank < extra)


def epoch_order(samples: int, seed: int, epoch: int, shuffle: bool = True) -> np.ndarray:
    """The order of the samples in this epoch: the same on all ranks, another in every epoch."""
    if not shuffle:
        return np.arange(samples)
    order: np.ndarray = draw_for(seed, epoch).permutation(samples)
    return order


def windowed_order(edges: np.ndarray, window: int, seed: int, epoch: int) -> np.ndarray:
    """An order in which neighbours are read together: blocks are shuffled, then samples in windows.

    Block k is the samples from edges[k] up to edges[k + 1]. A window is the next blocks, whole,
    until they have `window` samples or more. A reader that keeps as many samples in memory reads
    every block once. The same on all ranks, another in every epoch.

    >>> windowed_order(np.array([0, 3, 6, 8]), 2, seed=1, epoch=0).tolist()
    [2, 0, 1, 4, 3, 5, 6, 7]
    """
    draw = draw_for(seed, epoch)
    blocks = draw.permutation(len(edges) - 1)
    lengths = np.diff(edges)[blocks]
    firsts = np.cumsum(lengths) - lengths
    order = np.repeat(edges[blocks] - firsts, lengths)
    order += np.arange(len(order))
    begin = 0
    while begin < len(order):
        last = np.searchsorted(firsts, begin + window)
        end = int(firsts[last]) if last < len(firsts) else len(order)
        draw.shuffle(order[begin:end])
        begin = end
    return order


def order_of(source: Source, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """The order of the source's samples in this epoch: its own `order`, if it has one."""
    own = getattr(source, "order", None)
    if own is None or not shuffle:
        return epoch_order(len(source), seed, epoch, shuffle)
    order: np.ndarray = own(seed, epoch)
    return order


def draw_for(seed: int, epoch: int, *purpose: int) -> np.random.Generator:
    """Random numbers of an epoch, the same on all ranks; `purpose` tells several uses apart."""
    if seed < 0 or epoch < 0:
        raise ConfigError(f"seed is {seed} and epoch {epoch}, expected 0 or more")
    sequence = np.random.SeedSequence([seed, epoch, *purpose])
    return np.random.Generator(np.random.PCG64(sequence))


def check_batch_size(batch_size: int) -> None:
    """Refuse a batch without samples."""
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}, expected 1 or more")


def check_enough(samples: int, size: int) -> None:
    """Refuse fewer samples than ranks: some rank would have nothing to do in every step."""
    if samples < 1:
        raise DataError("there are no training samples; expected at least 1 per rank")
    if samples < size:
        noun = "sample" if samples == 1 else "samples"
        ranks = "rank" if samples == 1 else "ranks"
        raise DataError(
            f"{size} ranks but only {samples} training {noun}; start at most {samples} {ranks}"
        )
