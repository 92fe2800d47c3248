"""`shard`: this rank's batches of the data, for a loop of your own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

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
from paceline.runtime.world import init, latest
from paceline.training.balance import BalanceSettings, make_balancer, read_together
from paceline.training.loop.shard_epoch import ShardEpoch
from paceline.training.own_loop.loader import LoaderShard, is_loader
from paceline.training.session import (
    Place,
    ServedSamples,
    Serving,
    begin_serving,
    current_session,
    elastic_pace,
    note_shard,
    workers_of,
)

if TYPE_CHECKING:
    from paceline.training.own_loop.pace import Pace

Convert = Callable[[Any], Any]


_numbers: defaultdict[object, count[int]] = defaultdict(count)
"""How many shards of a kind there are."""


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
        length = 0 if isinstance(source, Stream) else len(source)
        kind = (source.name, length, batch_size, *order)
        self._name = (*kind, next(_numbers[kind]))
        """The same on all ranks, which make shards that look alike in the same order."""
        self._serving = Serving(batch_size * mean, balancer=self._balancer)
        note_shard(self)

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        if isinstance(self._source, Stream):
            raise TypeError("a stream has no known number of batches")
        self._follow_world()
        workers = len(workers_of(self.world))
        check_enough(len(self._source), workers)
        return len(self._split_rest(self.epoch, EpochRemainder(workers, self.batch_size)))

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

    def _split_rest(self, epoch: int, remainder: EpochRemainder) -> EpochSplit:
        assert not isinstance(self._source, Stream)
        seed, shuffle = self._order
        return split_epoch(
            self._source, remainder, self._balance, seed=seed, epoch=epoch, shuffle=shuffle
        )

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        served, skipped = begin_serving(), self._place.begin()
        self._follow_world()
        pace = elastic_pace(self.world)
        if pace is not None:
            yield from self._elastic_epoch(pace, epoch, served, skipped)
            return
        workers = workers_of(self.world)
        if self._balancer is not None:
            if self._balancer.has_measured:  # else somebody only looks at a batch, maybe alone
                self._balancer.learn()
            self._balancer.begin_epoch()
        if self.world.rank not in workers:
            return
        begun = self._begin(epoch, workers)
        begun.taken = skipped
        try:
            for batch in self._open(begun):
                yield self._hand_out(batch, served)
        finally:  # also if the loop breaks off
            self._place.end()
        for pace in current_session().paces:
            pace.end_epoch(self)

    def _elastic_epoch(
        self, pace: Pace, epoch: int, served: ServedSamples, skipped: int
    ) -> Iterator[Any]:
        """This rank's batches, and those that it gets when others are lost. All end together."""
        self._check_elastic()
        begun = self._begin(epoch, pace.workers)
        begun.taken = begun.stepped = skipped
        place, is_over = pace.begin_epoch(self, begun), False
        try:
            while not is_over:
                deals = place.deals
                if self._balancer is not None:
                    self._balancer.begin_epoch()
                with closing(self._open(place)) as batches:
                    for batch in batches:
                        place.taken += 1
                        yield self._hand_out(batch, served)
                        if place.deals > deals:
                            self._place.is_lasting = False
                            break
                is_over = place.deals == deals and pace.end_epoch(self)
        finally:  # also if the loop breaks off
            self._place.end()

    def _begin(self, epoch: int, workers: tuple[int, ...]) -> ShardEpoch:
        """A whole epoch, for these ranks."""
        if not isinstance(self._source, Stream):
            check_enough(len(self._source), len(workers))
        return ShardEpoch(
            (*self._name, epoch),
            epoch,
            EpochRemainder(len(workers), self.batch_size),
            workers,
            Shard(workers.index(self.world.rank), len(workers)),
            None if isinstance(self._source, Stream) else partial(self._split_rest, epoch),
        )

    def _open(self, place: ShardEpoch) -> Generator[Batch]:
        """The batches that this rank has not had."""
        yield from training_batches(
            self._source,
            shard=place.shard,
            batch_size=self.batch_size,
            seed=self._order.seed,
            epoch=place.epoch,
            shuffle=self._order.shuffle,
            remainder=place.remainder,
            split=None if place.split is None else place.split(place.remainder),
            taken=place.taken,
            prefetch=self._loading.prefetch,
            loaders=self._loading.loaders,
        )

    def _hand_out(self, batch: Batch, served: ServedSamples) -> Any:
        served.begin(self, self._serving)
        served.add(batch.samples, weight_of(batch, self._weights))
        if self._balancer is not None:
            assert batch.indices is not None
            self._balancer.hand_out(batch.indices)
        self._place.taken += 1
        return content_of(batch, self._loading.to)

    def _follow_world(self) -> None:
        """Ranks may have been lost since the last epoch."""
        world = latest(self.world)
        if world is not self.world:
            self.world = world
            if self._balancer is not None:
                self._balancer.change_world(world)

    def _check_elastic(self) -> None:
        balancer = self._balancer
        if balancer is not None and (balancer.learns or balancer.follows_speeds):
            what = 'cost "learned"' if balancer.learns else 'speeds "measured"'
            raise ConfigError(
                f"{what} is of steps that ranks take together, and this loop goes on without ranks "
                "that are lost; give cost as length, an array or a function, or say "
                "keep_pace(..., elastic=False): then a lost rank ends the run"
            )


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
