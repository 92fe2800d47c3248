"""`deal`: ranks take the next samples of a step when they are ready, for work nobody can plan."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

from paceline.comm import World
from paceline.comm.counter import Counter, NodeCounter
from paceline.core.nests import map_leaves
from paceline.core.vectors import Vector
from paceline.data import Batch, Source, Stream, as_source
from paceline.data.collate import Collate
from paceline.data.convert import with_collate
from paceline.data.sampling.dealing import DealtEpoch
from paceline.data.sampling.learned import CostModel
from paceline.data.sampling.shards import check_batch_size, order_of
from paceline.data.sources import Samples
from paceline.errors import ConfigError, TrainingError
from paceline.runtime.world import init
from paceline.training.balance import WARM_UP_STEPS, learn_together, read_costs
from paceline.training.batches import Convert, Order, content_of, read_weights, weight_of
from paceline.training.session import ServedSamples, Serving, begin_serving, current_session


class Deal:
    """The steps of an epoch, each to be shared by all ranks; made by `deal`."""

    def __init__(
        self,
        source: Source,
        global_batch: int,
        micro_batch: int | None,
        world: World,
        order: Order,
        costs: Vector | None,
        model: CostModel | None,
        weights: Vector | None,
        to: Convert | None,
    ) -> None:
        """`model` learns the costs; until it has, `costs` are a guess, if there is one."""
        self.epoch = 0
        """The epoch that the next iteration gives."""
        self._source, self._world, self._order, self._to = source, world, order, to
        self._global_batch, self._micro_batch = global_batch, micro_batch
        self._costs, self._model, self._weights = costs, model, weights
        self._noted = 0
        self._alone: Counter | None = None
        self._used = 0
        mean = 1.0 if weights is None else float(weights.mean())
        self._serving = Serving(global_batch / world.size * mean, dealt=True)

    def __len__(self) -> int:
        """Steps per epoch."""
        return -(-len(self._source) // self._global_batch)

    def __iter__(self) -> Iterator[DealtStep]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        if epoch > 0:
            self._learn()
        order = order_of(self._source, self._order.seed, epoch, self._order.shuffle)
        costs = None if self._costs is None else self._costs[order]
        edges = [*range(0, len(order), self._global_batch), len(order)]
        dealt = DealtEpoch(order, edges, self._micro_batch or 1, costs)
        counter, first = self._open_counter(dealt.total)
        served = begin_serving()
        try:
            for step in range(len(dealt)):
                served.begin(self, self._serving)
                numbers = dealt.numbers(step)
                yield DealtStep(self, dealt, counter, first, numbers, served)
        finally:  # steps that follow are not of this epoch, and may have no samples of it
            served.end(self)
        for pace in current_session().paces:
            pace.end_epoch(self)

    def _learn(self) -> None:
        """All ranks together, between two epochs."""
        if self._model is None:
            return
        found = learn_together(self._world, self._model)
        self._costs = self._costs if found is None else found

    def note(self, places: Vector, seconds: float) -> None:
        """A micro-batch took so long."""
        self._noted += 1
        if self._model is not None and self._noted > WARM_UP_STEPS:
            self._model.note(places, seconds)

    def _open_counter(self, numbers: int) -> tuple[Counter, int]:
        paces = [pace for pace in current_session().paces if pace.world is self._world]
        if paces:
            if len(paces[0].workers) < self._world.size or paces[0].asynchronous:
                raise ConfigError(
                    "paceline.deal is for rules whose ranks train in step (bsp, average, diloco); "
                    "with others use paceline.shard: nobody waits there"
                )
            if any(pace.is_elastic for pace in paces):
                raise ConfigError(
                    "paceline.deal cannot tell what a lost rank had taken; use paceline.shard, or "
                    "say keep_pace(..., elastic=False): then a lost rank ends the run"
                )
            return paces[0].counter(numbers)
        if self._world.size > 1:
            raise TrainingError(
                "paceline.deal was iterated over outside of a keep_pace block, which averages the "
                "gradients of a step; put the loop into `with paceline.keep_pace(...):`"
            )
        if self._alone is None:
            self._alone = NodeCounter(self._world.node_memory(8, locks=1))
        first, self._used = self._used, self._used + numbers
        return self._alone, first

    def take(self, places: Vector, served: ServedSamples) -> Any:
        """The samples of a micro-batch, for this rank; None if they count nothing."""
        batch = Batch(None, None, len(places), places)
        weight = weight_of(batch, self._weights)
        served.add(batch.samples, weight)
        if not weight:
            return None
        for pace in current_session().paces:
            pace.begin_micro_batch(weight)
        if self._micro_batch is not None:
            return content_of(self._source.take(places), self._to)
        sample = Samples(self._source)[int(places[0])]
        return map_leaves(self._to, sample) if self._to else sample


class DealtStep:
    """One step: iterate over it for as many of its samples as this rank gets to, maybe none."""

    def __init__(
        self,
        deal: Deal,
        epoch: DealtEpoch,
        counter: Counter,
        first: int,
        numbers: range,
        served: ServedSamples,
    ) -> None:
        self._deal, self._epoch, self._counter = deal, epoch, counter
        self._first, self._numbers, self._served = first, numbers, served

    def __iter__(self) -> Iterator[Any]:
        begin, end = self._first + self._numbers.start, self._first + self._numbers.stop
        while (number := self._counter.take(begin, end)) is not None:
            places = self._epoch.places(number - self._first)
            content = self._deal.take(places, self._served)
            if content is not None:
                began = perf_counter()
                yield content
                self._deal.note(places, perf_counter() - began)


def deal(
    data: Any,
    global_batch: int,
    micro_batch: int | None = None,
    *,
    cost: object = None,
    weight: object = None,
    collate: Collate | None = None,
    seed: int = 1,
    shuffle: bool = True,
    to: Convert | None = None,
    world: World | None = None,
) -> Deal:
    """Steps of `global_batch` samples, of which each rank takes the next when it is ready.

        for batch in paceline.deal(sentences, global_batch=64):
            optimizer.zero_grad()
            for sentence in batch:  # as many as this rank gets to
                loss(model(sentence)).backward()
            optimizer.step()  # the mean over all 64

    For samples that take a time nobody knows in advance: no rank waits for more than one sample.
    Each sample is on one rank, once per epoch. The gradient is the mean over the samples of the
    step, whoever took them, or with `weight` (as of `shard`) their weighted mean: let your loss be
    a mean over what each item counts. With `micro_batch` ranks take so many samples at a time, as
    a batch. With `cost`, as of `shard`, the longest of a step come first, so ranks end closer
    together: a guess, or "learned" from what each took in the first epoch. Further options are as
    of `shard`.
    """
    world = world or init()
    for size in (global_batch, micro_batch):
        if size is not None:
            check_batch_size(size)
    if collate is not None and micro_batch is None:
        raise ConfigError("collate joins samples to a batch; set micro_batch, or omit collate")
    source = with_collate(as_source(data), collate)
    if isinstance(source, Stream):
        raise ConfigError(
            "paceline.deal takes samples by number, and a stream has none; give data with a length"
        )
    costs, model = None, None
    if cost is not None:
        costs, model = read_costs(source, world, cost)
    weights, order = read_weights(source, world, weight), Order(seed, shuffle)
    return Deal(source, global_batch, micro_batch, world, order, costs, model, weights, to)
