"""This rank's share of arrays, in batches, for `fit`."""

from __future__ import annotations

from weakref import WeakSet

import keras

from paceline.comm import World
from paceline.data import Stream, as_source, plan_steps
from paceline.data.sampling.shards import epoch_order
from paceline.errors import DataError
from paceline.runtime.world import init


class ShardedBatches(keras.utils.PyDataset):
    """This rank's share of the data, in batches; made by `shard`."""

    def __init__(
        self, data: object, batch_size: int, seed: int, shuffle: bool, world: World | None
    ) -> None:
        super().__init__()
        world = world or init()
        source = as_source(data)
        if isinstance(source, Stream):
            raise DataError(
                f"{source.name} has no length, so it cannot be sharded by number; give arrays or "
                "files, or train with paceline.Trainer"
            )
        self._source, self._rank = source, world.rank
        self._seed, self._shuffle = seed, shuffle
        self._plan = plan_steps(len(source), world.size, batch_size)
        self._epoch, self._led = -1, False
        self._order = epoch_order(len(source), seed, 0, shuffle)
        _shards.add(self)

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        return len(self._plan)

    def __getitem__(self, index: int) -> tuple[object, ...]:
        begin, end = self._plan.bounds(index, self._rank)
        batch = self._source.take(self._order[begin:end])
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
        self._order = epoch_order(len(self._source), self._seed, epoch, self._shuffle)


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
    seed: int = 1,
    shuffle: bool = True,
    world: World | None = None,
) -> ShardedBatches:
    """This rank's share of arrays, for `fit`: every sample on one rank, once per epoch.

    `batch_size` is per rank. Samples are sharded anew in every epoch of a `fit` with KeepPace, by
    `seed` and the epoch's number, alike on all ranks; so pass `shuffle=False` to `fit`, or Keras
    also changes the order of the batches.
    """
    return ShardedBatches(x if y is None else (x, y), batch_size, seed, shuffle, world)
