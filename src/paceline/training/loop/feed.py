"""The batches that a worker gets in an epoch: planned in advance, or dealt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

from paceline.config.run import RunConfig
from paceline.data import Batch, EpochRemainder, Shard, Stream, training_batches
from paceline.data.sampling.split import EpochSplit, split_epoch
from paceline.training.loop.dealing import DealtBatch
from paceline.training.loop.position import EpochPosition
from paceline.training.loop.state import RunState

_NOT_KNOWN = 1 << 62
"""Batches that may come, where another rank may take them."""


class EpochOrder(TypedDict):
    """What the order of an epoch is drawn from."""

    seed: int
    epoch: int
    shuffle: bool


class Feed:
    """A rank's batches, and whether more will come.

    Batches are made lazily where their number is known, so that random draws happen after a
    checkpoint, not before.
    """

    def __init__(self, batches: Iterator[Batch | DealtBatch], left: int | None) -> None:
        self._batches, self._left = batches, left
        self._ahead = next(batches, None) if left is None else None

    def take(self) -> tuple[Batch | DealtBatch | None, bool]:
        if self._left is not None:
            self._left -= 1
            batch = next(self._batches, None)
            return batch, batch is not None and self._left > 0
        batch = self._ahead
        self._ahead = next(self._batches, None) if batch is not None else None
        return batch, self._ahead is not None


def open_feed(state: RunState, position: EpochPosition) -> Feed:
    """The batches of the epoch that this worker has not had."""
    data, source, taken = state.config.data, state.data.train, position.taken
    if state.data.balancer is not None:
        state.data.balancer.begin_epoch(taken)
    dealer, steps = state.dealer, 0
    if dealer is not None:  # a rank that has ended, too: numbers are counted alike on all
        steps = dealer.begin_epoch(position.remainder, taken, **order_of_run(state))
    if position.ended:
        return Feed(iter(()), 0)
    if dealer is not None:
        return Feed(dealer.batches(taken), steps - taken if dealer.by_steps else _NOT_KNOWN)
    split = None if isinstance(source, Stream) else split_run(state, position.remainder)
    batches = training_batches(
        source,
        shard=Shard(state.world.rank, state.world.size),
        batch_size=position.remainder.batch_size,
        **order_of_run(state),
        remainder=position.remainder,
        split=split,
        taken=taken,
        prefetch=data.prefetch,
        loaders=data.loaders,
    )
    return Feed(batches, None if split is None else split.batches(state.world.rank) - taken)


def split_run(state: RunState, remainder: EpochRemainder) -> EpochSplit:
    """Which samples each rank takes of what is left of the epoch that runs."""
    data = state.data
    assert not isinstance(data.train, Stream)
    if state.dealer is not None:
        return state.dealer.split(remainder, **order_of_run(state))
    balance = None if data.balancer is None else data.balancer.balance
    return split_epoch(data.train, remainder, balance, **order_of_run(state))


def order_of_run(state: RunState) -> EpochOrder:
    """That of the epoch that runs."""
    config = state.config
    return {"seed": config.seed, "epoch": state.clock.epoch, "shuffle": config.data.shuffle}


def micro_batches_of(batch: Batch, config: RunConfig) -> list[Batch]:
    """What to compute at a time: none larger than a batch, none of a single sample."""
    if config.accumulate == 1:
        return batch.split(1)
    size = config.data.batch_size
    most = batch.samples if size == 1 else max(1, batch.samples // 2)
    return batch.split(min(-(-batch.samples // size), most))
