"""Dynamic dealing in a run: each rank takes the next samples when it is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from paceline.comm import World
from paceline.comm.counter import Counter, make_counter
from paceline.core.vectors import Vector
from paceline.data import Batch, EpochRemainder, Source
from paceline.data.sampling.dealing import DealtEpoch, DealtSplit
from paceline.data.sampling.shards import StepPlan, order_of
from paceline.observe import Stopwatch

_MICRO_BATCHES = 8
"""That a rank takes in a step, if all are equally fast."""


class DealtBatch:
    """What this rank gets to in a step of all ranks: iterate over its micro-batches."""

    def __init__(self, dealer: Dealer, numbers: range) -> None:
        self._dealer, self._numbers = dealer, numbers
        self.samples = 0
        """Taken so far."""
        self.indices: Vector = np.empty(0, np.int64)

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self._dealer.take(self._numbers)) is not None:
            assert batch.indices is not None
            self.samples += batch.samples
            self.indices = np.append(self.indices, batch.indices)
            yield batch

    def where(self) -> str:
        return Batch(None, None, self.samples, self.indices).where()


class Dealer:
    """The counter of a run, and what its numbers stand for in the epoch that runs."""

    def __init__(
        self,
        world: World,
        source: Source,
        *,
        by_steps: bool,
        micro_batch: int | None,
        costs: Vector | None,
        watch: Stopwatch,
        fail: Callable[[World, BaseException], object],
    ) -> None:
        """`by_steps`: ranks share the samples of each step; else each takes whole batches. All
        ranks together."""
        self._source, self.by_steps, self._costs = source, by_steps, costs
        self._micro_batch, self._watch = micro_batch, watch
        # A number that was asked for ahead would be lost when the run is interrupted.
        self._counter: Counter = make_counter(
            world, lambda error: fail(world, error), ahead=by_steps
        )
        self._first = self._used = self._taken_before = 0
        self._epoch: DealtEpoch | None = None
        self._order: Vector = np.empty(0, np.int64)

    def split(
        self, remainder: EpochRemainder, *, seed: int, epoch: int, shuffle: bool
    ) -> DealtSplit:
        """How an epoch, or what is left of one, is dealt."""
        return self._split(remainder, order_of(self._source, seed, epoch, shuffle))

    def _split(self, remainder: EpochRemainder, order: Vector) -> DealtSplit:
        places = remainder.pick(np.arange(len(order)))
        size = remainder.batch_size
        if self.by_steps:
            plan = remainder.plan(len(order))
            micro = self._micro_batch or max(1, size // _MICRO_BATCHES)
        else:  # on several ranks a last sample alone joins the batch before it
            least = min(2, size) if remainder.size > 1 else 1
            plan, micro = StepPlan(len(places), 1, size, least), 2 * size
        costs = None if self._costs is None else self._costs[order[places]]
        ends = [plan.span(step)[1] for step in range(len(plan))] if len(places) else []
        return DealtSplit(DealtEpoch(places, [0, *ends], micro, costs), remainder.size, len(order))

    def begin_epoch(
        self, remainder: EpochRemainder, taken: int, *, seed: int, epoch: int, shuffle: bool
    ) -> int:
        """Deal this from now on, and say how many steps it has; so many steps, or batches of all
        ranks, were taken before. All ranks do so."""
        self._taken_before = taken
        self._order = order_of(self._source, seed, epoch, shuffle)
        self._epoch = self._split(remainder, self._order).epoch
        self._first, self._used = self._used, self._used + self._epoch.total
        return len(self._epoch)

    def take(self, numbers: range) -> Batch | None:
        """The next micro-batch of these numbers; None: all have been taken."""
        self._watch.lap("compute")
        assert self._epoch is not None
        first = self._first
        number = self._counter.take(first + numbers.start, first + numbers.stop)
        batch = None
        if number is not None:
            batch = self._source.take(self._order[self._epoch.places(number - first)])
        self._watch.lap("data")
        return batch

    def batches(self, taken: int) -> Iterator[Batch | DealtBatch]:
        """What a rank gets when so many steps, or batches of all ranks, have been taken."""
        assert self._epoch is not None
        if self.by_steps:
            for step in range(taken, len(self._epoch)):
                yield DealtBatch(self, self._epoch.numbers(step))
            return
        while (batch := self.take(range(taken, self._epoch.total))) is not None:
            yield batch

    def end_epoch(self) -> None:
        """Nothing more is taken of it, and nothing has been of the next."""
        self._first, self._taken_before = self._used, 0

    def taken(self) -> int:
        """Batches that ranks have taken of the epoch, when all have paused; all together."""
        return max(self._taken_before, self._counter.value() - self._first)

    def close(self) -> None:
        """All ranks together."""
        self._counter.close()

    def abandon(self) -> None:
        """This rank has failed."""
        self._counter.abandon()
