"""A torch DataLoader of your own, sharded: its dataset, its collate function, its workers and the
order of its sampler, with this rank's share of each batch of the world."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

import numpy as np

from paceline.comm import World
from paceline.core.vectors import Vector
from paceline.data import EpochRemainder
from paceline.data.collate import torch_has
from paceline.data.fingerprint import sum_samples
from paceline.data.sampling.shards import check_enough
from paceline.data.sampling.split import CountSplit
from paceline.data.sources import DatasetSource
from paceline.errors import ConfigError, DataError
from paceline.frameworks.random_state import (
    accept_generator_states,
    generator_states,
    seed_generators,
)
from paceline.training.session import (
    Place,
    Serving,
    begin_serving,
    current_session,
    elastic_pace,
    note_shard,
    workers_of,
)

_KEPT = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
    "multiprocessing_context", "prefetch_factor", "persistent_workers",
)  # fmt: skip
"""Of the user's loader."""


_drawing = Lock()
"""Random numbers belong to the process, and ranks may be threads of one."""


def is_loader(data: object) -> bool:
    return torch_has(data, "utils", "data", "DataLoader")


class LoaderShard:
    """This rank's batches of a DataLoader; made by `shard`. Each iteration is a new epoch."""

    def __init__(self, loader: Any, seed: int, world: World) -> None:
        _check(loader)
        self.epoch = 0
        """The epoch that the next iteration gives."""
        self.dataset, self.batch_size = loader.dataset, int(loader.batch_size)
        self._loader, self._seed, self.world = loader, seed, world
        self._place = Place()
        self._batches = _Batches()
        kept = {name: getattr(loader, name) for name in _KEPT}
        utils: Any = sys.modules["torch"].utils.data
        self._inner = utils.DataLoader(loader.dataset, batch_sampler=self._batches, **kept)
        self._serving = Serving(self.batch_size)
        note_shard(self)

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        return len(self._split(self._samples()))

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        served, workers = begin_serving(), workers_of(self.world)
        if elastic_pace(self.world) is not None:
            raise ConfigError(
                "shard(loader) cannot deal the samples of lost ranks to others; pass the dataset "
                "itself, paceline.shard(loader.dataset, batch_size=...), or say "
                "keep_pace(..., elastic=False): then a lost rank ends the run"
            )
        skipped = self._place.begin()
        order = self._draw_order(epoch)
        if self.world.rank not in workers:
            return
        split, place = self._split(len(order)), workers.index(self.world.rank)
        shares = (order[split.share(step, place)] for step in range(len(split)))
        self._batches.now = [share.tolist() for share in shares][skipped:]
        try:
            for numbers, batch in zip(self._batches.now, self._inner, strict=True):
                served.begin(self, self._serving)
                served.add(len(numbers), float(len(numbers)))
                self._place.taken += 1
                yield batch
        finally:  # also if the loop breaks off
            self._place.end()
        for pace in current_session().paces:
            pace.end_epoch(self)

    def position(self) -> dict[str, int]:
        """Which epoch it is in, and how many of its batches have been taken."""
        return self._place.describe(self.epoch)

    def go_on_at(self, epoch: int, taken: int) -> None:
        """Begin there with the next iteration."""
        self.epoch, self._place = epoch, Place(taken)

    def describe(self) -> dict[str, object]:
        """What must be the same on all ranks."""
        return {
            "samples": len(self.dataset),
            "content": sum_samples(DatasetSource(self.dataset)),
            "batch_size": self.batch_size,
            "seed": self._seed,
            "sampler": type(self._loader.sampler).__name__,
        }

    def _samples(self) -> int:
        """Of an epoch; those of an incomplete last batch may be left out."""
        samples = len(self._loader.sampler)
        batch = self.batch_size * len(workers_of(self.world))
        return samples // batch * batch if self._loader.drop_last else samples

    def _split(self, samples: int) -> CountSplit:
        workers = len(workers_of(self.world))
        check_enough(samples, workers)
        return CountSplit(EpochRemainder(workers, self.batch_size), samples)

    def _draw_order(self, epoch: int) -> Vector:
        """What the sampler says, with the same random numbers on every rank."""
        generator = getattr(self._loader.sampler, "generator", None)
        with _drawing:
            return self._draw_alone(generator, self._seed + 1_000_003 * epoch)

    def _draw_alone(self, generator: Any, seed: int) -> Vector:
        states, own = generator_states(), None if generator is None else generator.get_state()
        try:
            seed_generators(seed)
            if generator is not None:
                generator.manual_seed(seed)
            order = np.fromiter(map(int, self._loader.sampler), np.int64)
        finally:
            accept_generator_states(states)
            if generator is not None:
                generator.set_state(own)
        return order[: self._samples()]


class _Batches:
    """A batch sampler that gives what it is told to."""

    def __init__(self) -> None:
        self.now: Sequence[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)


def _check(loader: Any) -> None:
    if torch_has(loader.dataset, "utils", "data", "IterableDataset"):
        raise DataError(
            "the DataLoader reads an IterableDataset, whose samples have no numbers; pass the "
            "dataset itself: paceline.shard(loader.dataset, batch_size=..., collate=...)"
        )
    if loader.batch_size is None:
        raise DataError(
            "the DataLoader has a batch_sampler of its own, or makes no batches, so nobody can "
            "tell how to share them out; give it batch_size and, if you need one, a sampler. For "
            "samples of unequal length see paceline.shard(dataset, cost=...)"
        )
    if torch_has(loader.sampler, "utils", "data", "DistributedSampler"):
        raise ConfigError(
            "the DataLoader has a DistributedSampler, which shards already; omit the sampler (say "
            "shuffle=True)"
        )
