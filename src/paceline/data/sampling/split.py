"""How the samples of an epoch are split among steps and ranks: by count, or by cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from paceline.core.vectors import Vector
from paceline.data.sampling.balance import (
    BalancedEpoch,
    Places,
    choose_bucketing,
    plan_balanced,
)
from paceline.data.sampling.partial_epoch import EpochRemainder, Ranges, as_ranges
from paceline.data.sampling.shards import StepPlan, draw_for, order_of
from paceline.data.sources import Source
from paceline.errors import CheckpointError, ConfigError

SPEED_CHANGE = 0.03
_TURNS_OF_STEPS = 1
"""Which of an epoch's random numbers the order of its steps is drawn from."""


@dataclass
class Balance:
    """What equal shares are measured by."""

    costs: Vector
    """Of all samples of the source."""
    bucketing: float | None = None
    """How far steps consist of samples of similar cost, from 0 to 1; None: as far as needed."""
    budget: float | None = None
    """The cost of a rank's batch, if that and not a number of samples is given."""
    padded: bool = False
    """Whether each sample of a batch costs as much as its largest."""
    weights: Vector | None = None
    """What samples count in the mean of gradients, if not all count alike."""
    speeds: SpeedTable | None = None
    """How fast ranks have been found to be; None: all are taken to be equally fast."""
    _chosen: dict[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.bucketing is not None and not 0 <= self.bucketing <= 1:
            raise ConfigError(
                f"bucketing is {self.bucketing}, expected 0 (random steps) to 1 (samples sorted by "
                "cost)"
            )
        if self.budget is not None and not 0 < self.budget < float("inf"):
            raise ConfigError(f"tokens_per_batch is {self.budget}, expected a number above 0")

    def usual_batch_size(self) -> int:
        """The samples of a batch on average, where the budget says how large it is."""
        assert self.budget is not None
        mean = float(self.costs.mean())
        return max(1, round(self.budget / mean)) if mean else 1

    def bucketing_for(self, size: int, batch_size: int) -> float:
        """As set, or as needed by so many ranks with batches of this size."""
        if self.bucketing is not None:
            return self.bucketing
        key = size, batch_size
        if key not in self._chosen:
            plan = StepPlan(len(self.costs), size, batch_size)
            self._chosen[key] = choose_bucketing(self.costs, plan, self.padded)
        return self._chosen[key]

    def learn(self, costs: Vector) -> None:
        """Better costs have been found; epochs are planned by them, in the unit of the old ones."""
        self.use(costs * (float(self.costs.mean()) / float(costs.mean())))

    def use(self, costs: Vector) -> None:
        """Plan by these from now on."""
        self.costs = costs
        self._chosen.clear()


class SpeedTable:
    """How fast ranks are, from which step of the epoch on.

    Batches are prepared ahead, so new speeds count from a later step on: the same on all ranks.
    """

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._known: list[tuple[int, Vector]] = []

    def note(self, step: int, speeds: Vector) -> None:
        """What was measured in this step; small changes are none."""
        last = self._known[-1][1] if self._known else np.ones(len(speeds))
        relative = speeds / speeds.mean()
        if np.abs(relative / last - 1).max() > SPEED_CHANGE:
            self._known.append((step + self._ahead, relative))

    def at(self, step: int) -> Vector | None:
        """Those that count in this step; None: nothing is known."""
        return next((speeds for first, speeds in reversed(self._known) if first <= step), None)

    def forget(self) -> None:
        """There are other ranks."""
        self._known = []

    def begin_epoch(self) -> None:
        """The speeds of the last steps count from the first on."""
        self._known = [(0, speeds) for _, speeds in self._known[-1:]]


class EpochSplit(Protocol):
    """Which places of an epoch's order each rank takes in each step."""

    size: int
    """Ranks."""
    samples: int
    """Of the whole epoch."""

    def __len__(self) -> int:
        """The number of steps."""

    def batches(self, rank: int) -> int:
        """How many batches the rank takes."""

    def share(self, step: int, rank: int) -> Places | slice:
        """Its places in this step."""


class CountSplit:
    """Equal counts: contiguous, nearly equal parts of each step."""

    def __init__(self, remainder: EpochRemainder, samples: int) -> None:
        self._remainder, self._plan = remainder, remainder.plan(samples)
        self.size, self.samples = remainder.size, samples

    def __len__(self) -> int:
        return len(self._plan) if self._plan.samples else 0

    def batches(self, rank: int) -> int:
        return len(self) if rank < self._plan.ranks_with_samples else 0

    def share(self, step: int, rank: int) -> Places | slice:
        begin, end = self._plan.bounds(step, rank)
        return slice(begin, end) if self._picked is None else self._picked[begin:end]

    @cached_property
    def _picked(self) -> Places | None:
        whole = self._remainder.ranges is None
        return None if whole else self._remainder.pick(np.arange(self.samples))


class CostSplit:
    """Equal costs: see balance.py. The epoch is planned when it is first asked for."""

    def __init__(
        self,
        source: Source,
        remainder: EpochRemainder,
        balance: Balance,
        *,
        seed: int,
        epoch: int,
        shuffle: bool,
    ) -> None:
        self._source, self._remainder, self._balance = source, remainder, balance
        self._seed, self._epoch, self._shuffle = seed, epoch, shuffle
        self.size, self.samples = remainder.size, len(source)

    def __len__(self) -> int:
        balance, remainder = self._balance, self._remainder
        by_weight = balance.weights is not None and balance.bucketing_for(
            remainder.size, remainder.batch_size
        )
        if balance.budget is not None or by_weight:
            return len(self._planned)
        plan = self._remainder.plan(self.samples)
        return len(plan) if plan.samples else 0

    def batches(self, rank: int) -> int:
        plan = self._remainder.plan(self.samples)
        return len(self) if rank < plan.ranks_with_samples else 0

    def share(self, step: int, rank: int) -> Places | slice:
        if rank >= self._planned.ranks_with_samples:
            return slice(0, 0)
        table = self._balance.speeds
        speeds = None if table is None else table.at(step)
        own: Places = self._picked[self._planned.share(step, rank, speeds)]
        return own

    @cached_property
    def _picked(self) -> Places:
        return self._remainder.pick(np.arange(self.samples))

    @cached_property
    def _planned(self) -> BalancedEpoch:
        remainder, balance = self._remainder, self._balance
        order = order_of(self._source, self._seed, self._epoch, self._shuffle)[self._picked]
        return plan_balanced(
            balance.costs[order],
            remainder.plan(self.samples),
            bucketing=balance.bucketing_for(remainder.size, remainder.batch_size),
            draw=draw_for(self._seed, self._epoch, _TURNS_OF_STEPS) if self._shuffle else None,
            budget=balance.budget,
            padded=balance.padded,
            weights=None if balance.weights is None else balance.weights[order],
        )


def split_epoch(
    source: Source,
    remainder: EpochRemainder,
    balance: Balance | None = None,
    *,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
) -> EpochSplit:
    """Split what is left of an epoch, by cost if there is a balance to strike."""
    if balance is None:
        return CountSplit(remainder, len(source))
    return CostSplit(source, remainder, balance, seed=seed, epoch=epoch, shuffle=shuffle)


def rest_of(split: EpochSplit, taken: Sequence[int]) -> Ranges:
    """What is left of the epoch when each rank has taken so many batches.

    >>> rest_of(CountSplit(EpochRemainder(2, 5), samples=23), [1, 1])
    ((10, 23),)
    >>> rest_of(CountSplit(EpochRemainder(2, 5), samples=23), [1, 2])
    ((10, 17),)
    """
    if len(taken) != split.size:
        raise CheckpointError(
            f"{len(taken)} ranks took batches of an epoch that was split among {split.size}"
        )
    left = np.zeros(split.samples, bool)
    for rank, done in enumerate(taken):
        for step in range(done, split.batches(rank)):
            left[split.share(step, rank)] = True
    return as_ranges(np.flatnonzero(left))
