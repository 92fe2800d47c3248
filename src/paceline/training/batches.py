"""`shard`: this rank's batches of a data set, for a loop of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from paceline.comm import World
from paceline.core.nests import map_leaves
from paceline.data import EpochRemainder, Shard, Stream, as_source, training_batches
from paceline.data.sampling.shards import check_batch_size, check_enough
from paceline.data.sampling.split import EpochSplit, split_epoch
from paceline.runtime.world import init
from paceline.training.balance import make_balance
from paceline.training.session import begin_serving, current_session


class Batches:
    """This rank's batches of a data set; each iteration over it is one epoch. Made by `shard`."""

    def __init__(
        self,
        data: Any,
        batch_size: int,
        *,
        seed: int = 1,
        shuffle: bool = True,
        cost: object = None,
        bucketing: float | None = None,
        prefetch: int | None = None,
        loaders: int = 1,
        to: Callable[[Any], Any] | None = None,
        world: World | None = None,
    ) -> None:
        world = world or init()
        check_batch_size(batch_size)
        self.epoch = 0
        """The epoch that the next iteration gives."""
        self._source, self._world = as_source(data), world
        self._batch_size, self._to = batch_size, to
        self._seed, self._shuffle = seed, shuffle
        self._loading = {"prefetch": prefetch, "loaders": loaders}
        self._balance = make_balance(self._source, world, cost, bucketing)

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        if isinstance(self._source, Stream):
            raise TypeError("a stream has no known number of batches")
        return len(self._split(self.epoch, len(self._workers())))

    def _split(self, epoch: int, workers: int) -> EpochSplit:
        assert not isinstance(self._source, Stream)
        check_enough(len(self._source), workers)
        whole = EpochRemainder(workers, self._batch_size)
        order = {"seed": self._seed, "epoch": epoch}
        return split_epoch(self._source, whole, self._balance, **order, shuffle=self._shuffle)

    def _workers(self) -> tuple[int, ...]:
        """The ranks that share the samples: those that train in the block around, or all."""
        around = (pace.workers for pace in current_session().paces if pace.world is self._world)
        return next(around, tuple(range(self._world.size)))

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        served = begin_serving()
        workers = self._workers()
        if self._world.rank not in workers:
            return
        stream = isinstance(self._source, Stream)
        for batch in training_batches(
            self._source,
            shard=Shard(workers.index(self._world.rank), len(workers)),
            batch_size=self._batch_size,
            seed=self._seed,
            epoch=epoch,
            shuffle=self._shuffle,
            split=None if stream else self._split(epoch, len(workers)),
            **self._loading,  # type: ignore[arg-type]
        ):
            served.add(self, batch.samples, self._batch_size)
            content = batch.inputs if batch.targets is None else (batch.inputs, batch.targets)
            yield map_leaves(self._to, content) if self._to else content
        for pace in current_session().paces:
            pace.end_epoch(self)


def shard(data: Any, batch_size: int, **options: Any) -> Batches:
    """This rank's share of the data, in batches: every sample on exactly one rank, once per epoch.

    `data` is arrays, a torch Dataset, a generator function, ... Each iteration over the result is a
    new epoch, shuffled by `seed` alike on all ranks. `to` is applied to each array (for example
    torch.from_numpy).

    With `cost` ("length", {"power": 2} of it, an array, a function of a sample, ...) ranks get
    equal costs in each step instead of equal counts, so none waits for the one with the longest
    samples. A step still has `batch_size` samples per rank on average, and their gradients are
    averaged over all of them alike. `bucketing`, from 0 to 1, says how far a step consists of
    samples of similar cost; by default as far as needed. Further options: seed, shuffle, prefetch,
    loaders, world.
    """
    return Batches(data, batch_size, **options)
