"""This rank's share of arrays, in batches, for `fit`."""

from __future__ import annotations

from weakref import WeakSet

import keras

from paceline.comm import World
from paceline.data import EpochRemainder, Stream, as_source
from paceline.data.collate import Collate
from paceline.data.convert import with_collate
from paceline.data.sampling.shards import check_batch_size, check_enough, order_of
from paceline.data.sampling.split import split_epoch
from paceline.errors import ConfigError, DataError
from paceline.runtime.world import init
from paceline.training.balance import LEARNED, BalanceSettings, make_balancer
from paceline.training.batches import Order


class ShardedBatches(keras.utils.PyDataset):
    """This rank's share of the data, in batches; made by `shard`."""

    def __init__(
        self,
        data: object,
        batch_size: int,
        order: Order,
        settings: BalanceSettings,
        collate: Collate | None,
        world: World | None,
    ) -> None:
        super().__init__()
        world = world or init()
        source = with_collate(as_source(data), collate)
        if isinstance(source, Stream):
            raise DataError(
                f"{source.name} has no length, so it cannot be sharded by number; give arrays or "
                "files, or train with paceline.Trainer"
            )
        self._source, self._rank, self._draw = source, world.rank, order
        check_batch_size(batch_size)
        check_enough(len(source), world.size)
        balancer = make_balancer(source, world, settings)
        self._balance = None if balancer is None else balancer.balance
        self._whole = EpochRemainder(world.size, batch_size)
        self._epoch, self._led = -1, False
        self._shard(0)
        self._epoch = -1
        _shards.add(self)

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        return len(self._split)

    def __getitem__(self, index: int) -> tuple[object, ...]:
        batch = self._source.take(self._order[self._split.share(index, self._rank)])
        return (batch.inputs,) if batch.targets is None else (batch.inputs, batch.targets)

    def begin(self, epoch: int | None) -> None:
        """Shard for this epoch, until the next call. None: count the epochs here again.

        Keras takes a first batch to build a model, and that looks like an epoch. KeepPace says
        which one it is, the same on all ranks.
        """
        self._led = epoch is not None
        if epoch is not None:
            self._shard(epoch)

    def on_epoch_begin(self) -> None:
        if not self._led:
            self._shard(self._epoch + 1)

    def _shard(self, epoch: int) -> None:
        self._epoch = epoch
        seed, shuffle = self._draw
        self._order = order_of(self._source, seed, epoch, shuffle)
        self._split = split_epoch(
            self._source, self._whole, self._balance, seed=seed, epoch=epoch, shuffle=shuffle
        )


def begin_shards(epoch: int | None) -> None:
    """Tell all shards which epoch begins; None: `fit` has ended."""
    for each in list(_shards):
        each.begin(epoch)


_shards: WeakSet[ShardedBatches] = WeakSet()
"""Those that are alive: callbacks of `fit` do not learn what it trains on."""


def shard(
    x: object,
    y: object = None,
    *,
    batch_size: int = 32,
    cost: object = None,
    bucketing: float | None = None,
    padded: bool | None = None,
    collate: Collate | None = None,
    seed: int = 1,
    shuffle: bool = True,
    world: World | None = None,
) -> ShardedBatches:
    """This rank's share of arrays, for `fit`: every sample on one rank, once per epoch.

    `batch_size` is per rank. Samples are sharded anew in every epoch of a `fit` with KeepPace, by
    `seed` and the epoch's number, alike on all ranks; so pass `shuffle=False` to `fit`, or Keras
    also changes the order of the batches. With `cost` ranks get equal costs instead of equal
    counts, as by `paceline.shard`; `collate` makes a batch of a list of samples, for example
    `paceline.data.Pad()`.
    """
    if isinstance(cost, str) and cost == LEARNED:
        raise ConfigError('cost is "learned", which `fit` does not measure; give it as an array')
    data = x if y is None else (x, y)
    settings = BalanceSettings(cost, bucketing, padded=padded)
    return ShardedBatches(data, batch_size, Order(seed, shuffle), settings, collate, world)
