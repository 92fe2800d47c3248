"""`shard`: this rank's batches of the data, for a loop of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from paceline.comm import World
from paceline.core.nests import map_leaves
from paceline.core.vectors import Vector
from paceline.data import (
    Batch,
    EpochRemainder,
    Shard,
    Source,
    Stream,
    as_source,
    training_batches,
)
from paceline.data.collate import Collate
from paceline.data.convert import with_collate
from paceline.data.fingerprint import describe_arrays, sum_samples
from paceline.data.sampling.epochs import depth_ahead
from paceline.data.sampling.shards import check_batch_size, check_enough
from paceline.data.sampling.split import EpochSplit, split_epoch
from paceline.data.sources import DatasetSource
from paceline.errors import ConfigError
from paceline.runtime.world import init
from paceline.training.balance import BalanceSettings, make_balancer, read_together
from paceline.training.own_loop.loader import LoaderShard, is_loader
from paceline.training.session import (
    Place,
    Serving,
    begin_serving,
    current_session,
    note_shard,
    workers_of,
)

Convert = Callable[[Any], Any]


class Order(NamedTuple):
    """In which order samples come."""

    seed: int = 1
    shuffle: bool = True


class Loading(NamedTuple):
    """How batches are made ready."""

    prefetch: int | None = None
    loaders: int = 1
    to: Convert | None = None
    """Applied to each array."""


class Batches:
    """This rank's batches; made by `shard`. Each iteration is a new epoch."""

    def __init__(
        self,
        source: Source | Stream,
        batch_size: int | None,
        world: World,
        order: Order,
        loading: Loading,
        settings: BalanceSettings,
        weight: object,
    ) -> None:
        self.epoch = 0
        """The epoch that the next iteration gives."""
        self._source, self.world, self._order, self._loading = source, world, order, loading
        self._place = Place()
        self.dataset = source.dataset if isinstance(source, DatasetSource) else source
        """What the samples are of; its length is their number."""
        ahead = depth_ahead(source, loading.prefetch, loading.loaders)
        self._weights = read_weights(source, world, weight)
        self._balancer = make_balancer(source, world, settings, ahead, self._weights)
        self._balance = None if self._balancer is None else self._balancer.balance
        if (batch_size is None) == (settings.tokens_per_batch is None):
            raise ConfigError(
                f"batch_size is {batch_size} and tokens_per_batch {settings.tokens_per_batch}; "
                "give one of them"
            )
        if batch_size is None:
            assert self._balance is not None
            batch_size = self._balance.usual_batch_size()
        check_batch_size(batch_size)
        self.batch_size = batch_size
        """Samples per rank and step, on average."""
        mean = 1.0 if self._weights is None else float(self._weights.mean())
        self._serving = Serving(batch_size * mean, balancer=self._balancer)
        note_shard(self)

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        if isinstance(self._source, Stream):
            raise TypeError("a stream has no known number of batches")
        return len(self._split(self.epoch, len(workers_of(self.world))))

    def position(self) -> dict[str, int]:
        """Which epoch it is in, and how many of its batches have been taken."""
        return self._place.describe(self.epoch)

    def go_on_at(self, epoch: int, taken: int) -> None:
        """Begin there with the next iteration."""
        self.epoch, self._place = epoch, Place(taken)

    def describe(self) -> dict[str, object]:
        """What must be the same on all ranks, for each of them to get its own part."""
        stream = isinstance(self._source, Stream)
        return {
            "samples": None if isinstance(self._source, Stream) else len(self._source),
            "arrays": describe_arrays(self._source),
            "content": None if stream else sum_samples(self._source),
            "batch_size": self.batch_size,
            "seed": self._order.seed,
            "shuffle": self._order.shuffle,
        }

    def _split(self, epoch: int, workers: int) -> EpochSplit:
        assert not isinstance(self._source, Stream)
        check_enough(len(self._source), workers)
        whole = EpochRemainder(workers, self.batch_size)
        seed, shuffle = self._order
        return split_epoch(
            self._source, whole, self._balance, seed=seed, epoch=epoch, shuffle=shuffle
        )

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        served, skipped = begin_serving(), self._place.begin()
        workers = workers_of(self.world)
        if self._balancer is not None:
            if self._balancer.has_measured:  # else somebody only looks at a batch, maybe alone
                self._balancer.learn()
            self._balancer.begin_epoch()
        if self.world.rank not in workers:
            return
        stream = isinstance(self._source, Stream)
        batches = training_batches(
            self._source,
            shard=Shard(workers.index(self.world.rank), len(workers)),
            batch_size=self.batch_size,
            seed=self._order.seed,
            epoch=epoch,
            shuffle=self._order.shuffle,
            split=None if stream else self._split(epoch, len(workers)),
            prefetch=self._loading.prefetch,
            loaders=self._loading.loaders,
        )
        try:
            for batch in islice(batches, skipped, None):
                served.begin(self, self._serving)
                served.add(batch.samples, weight_of(batch, self._weights))
                if self._balancer is not None:
                    assert batch.indices is not None
                    self._balancer.hand_out(batch.indices)
                self._place.taken += 1
                yield content_of(batch, self._loading.to)
        finally:  # also if the loop breaks off
            self._place.end()
        for pace in current_session().paces:
            pace.end_epoch(self)


def read_weights(source: Source | Stream, world: World, weight: object) -> Vector | None:
    """What each sample counts in the mean of gradients; None: all count alike."""
    if weight is None:
        return None
    if isinstance(source, Stream):
        raise ConfigError(
            "weight is one number for each sample, and a stream has no length; say pace.weigh in "
            "each step"
        )
    weights = read_together(source, world, weight, "weight")
    if not weights.any():
        raise ConfigError("weight is 0 for every sample, so no gradient would count")
    return weights


def weight_of(batch: Batch, weights: Vector | None) -> float:
    """What a batch counts in the mean of gradients."""
    return float(batch.samples if weights is None else weights[batch.indices].sum())


def content_of(batch: Batch, to: Convert | None) -> Any:
    """What a loop gets of a batch."""
    content = batch.inputs if batch.targets is None else (batch.inputs, batch.targets)
    return map_leaves(to, content) if to else content


def shard(
    data: Any,
    batch_size: int | None = None,
    *,
    cost: object = None,
    bucketing: float | None = None,
    tokens_per_batch: float | None = None,
    speeds: str = "equal",
    padded: bool | None = None,
    weight: object = None,
    collate: Collate | None = None,
    seed: int = 1,
    shuffle: bool = True,
    prefetch: int | None = None,
    loaders: int = 1,
    to: Convert | None = None,
    world: World | None = None,
) -> Batches | LoaderShard:
    """This rank's share of the data, in batches: every sample on exactly one rank, once per epoch.

    `data` is arrays, a torch Dataset, a list of samples, a generator function, ... Each iteration
    over the result is a new epoch, shuffled by `seed` alike on all ranks. `collate` makes a batch
    of a list of samples; `to` is applied to each array (for example torch.from_numpy).

    With `cost` ("length", {"power": 2} of it, an array, a function of a sample, or "learned" from
    what steps take) ranks get equal costs in each step instead of equal counts, so none waits for
    the one with the longest samples. A step still has `batch_size` samples per rank on average, or
    with `tokens_per_batch` so much cost, and their gradients are averaged over all of them alike.
    `bucketing`, from 0 to 1, says how far a step consists of samples of similar cost; by default as
    far as needed. With `speeds="measured"` a slower rank gets less. `padded` says that batches are
    padded to their longest sample, so that each of its samples costs as much; by default that is
    so if `collate` is a `Pad`.

    `data` may be a torch DataLoader, too: `shard(loader)` gives this rank's part of each batch with
    the loader's own collate function, workers and sampler; its batch_size is per rank.

    `weight` (of the same kinds as `cost`) is what each sample counts in the mean of gradients, for
    a loss that is a mean over something else than samples: "length" for a mean over tokens.
    """
    if is_loader(data):
        given = (batch_size, cost, bucketing, tokens_per_batch, padded, weight, collate, to)
        if any(value is not None for value in given):
            raise ConfigError(
                "a DataLoader has its own batch_size, collate_fn and order, so shard(loader) takes "
                "no more than seed and world; for other settings pass loader.dataset"
            )
        return LoaderShard(data, seed, world or init())
    return Batches(
        with_collate(as_source(data), collate),
        batch_size,
        world or init(),
        Order(seed, shuffle),
        Loading(prefetch, loaders, to),
        BalanceSettings(cost, bucketing, tokens_per_batch, speeds, padded),
        weight,
    )
