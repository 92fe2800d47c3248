"""`shard`: this rank's batches of a data set, for a loop of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from paceline.comm import World
from paceline.core.nests import map_leaves
from paceline.data import Shard, Stream, as_source, plan_steps, training_batches
from paceline.data.sampling.shards import check_batch_size
from paceline.runtime.world import init
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
        self._order = {"seed": seed, "shuffle": shuffle, "prefetch": prefetch, "loaders": loaders}

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        if isinstance(self._source, Stream):
            raise TypeError("a stream has no known number of batches")
        return len(plan_steps(len(self._source), len(self._workers()), self._batch_size))

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
        for batch in training_batches(
            self._source,
            shard=Shard(workers.index(self._world.rank), len(workers)),
            batch_size=self._batch_size,
            epoch=epoch,
            **self._order,  # type: ignore[arg-type]
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
    torch.from_numpy). Options: seed, shuffle, prefetch, loaders, to, world.
    """
    return Batches(data, batch_size, **options)
