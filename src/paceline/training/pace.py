"""For those who have a loop: `keep_pace` exchanges where they step, `shard` deals their data."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paceline.comm import World
from paceline.data import Shard, Stream, as_source, plan_steps, training_batches
from paceline.data.nests import map_leaves
from paceline.frameworks import limit_threads, make_loop
from paceline.launch.cores import available_cores, threads_per_rank
from paceline.launch.world import init
from paceline.observe import Stopwatch, TimeSplit
from paceline.rules import Rule, make_rule
from paceline.training.exchange import GradientExchange
from paceline.training.start import average_buffers, start_equal


class _Served:
    """Samples that `shard` has handed out since the last step, and how many a full step has.

    Only the batches served last count: what a validation loop took before them did not go into the
    gradients.
    """

    def __init__(self) -> None:
        self._by: object = None
        self._samples = self._nominal = 0

    def add(self, by: object, samples: int, nominal: int) -> None:
        if by is not self._by:
            self._by, self._samples, self._nominal = by, 0, 0
        self._samples += samples
        self._nominal += nominal

    def take(self) -> tuple[int, int]:
        taken = (self._samples, self._nominal) if self._samples else (1, 1)
        self._by, self._samples, self._nominal = None, 0, 0
        return taken


_served: contextvars.ContextVar[_Served | None] = contextvars.ContextVar("served", default=None)


class Pace:
    """A model in pace with its peers on the other ranks; made by `keep_pace`."""

    def __init__(self, world: World, loop: Any, rule: Rule) -> None:
        self.world = world
        self._loop = loop
        self._exchange = GradientExchange(world, loop, rule)
        self._watch = Stopwatch()
        start_equal(world, loop)

    def step(self) -> None:
        """Exchange the gradients of this rank's step; the optimizer then uses the average."""
        served = _served.get()
        samples, nominal = served.take() if served else (1, 1)
        self._watch.lap("compute")
        self._exchange.meet(samples, nominal, more=True, stop=False, watch=self._watch)

    def leave(self) -> None:
        """Take part, without samples, in the steps of the ranks that still have some."""
        while self.world.size > 1:
            self._loop.clear_gradients()
            meeting = self._exchange.meet(0, 1, more=False, stop=False, watch=self._watch)
            if not meeting.more:
                break
            self._loop.apply()
        average_buffers(self.world, self._loop)

    def time(self) -> TimeSplit:
        """Where this rank's time went since the last call; the user's own work is compute."""
        return self._watch.take()


@contextmanager
def keep_pace(
    model: Any,
    optimizer: Any,
    rule: str | Mapping[str, Any] | Rule = "bsp",
    *,
    world: World | None = None,
) -> Iterator[Pace]:
    """Keep this rank's model in pace with those of the other ranks, inside the block.

    On entry all ranks take over rank 0's parameters and buffers. Each `optimizer.step()` first
    exchanges gradients by the rule, weighted by the samples that `shard` handed out (equally
    without it). Ranks whose loops end sooner wait in the block's end and take part without samples
    until all have come; so uneven loops never hang. At the end BatchNorm-like buffers are averaged
    and the model is the same on every rank.
    """
    world = world or init()
    limit_threads(threads_per_rank(len(world.node_ranks), available_cores()))
    loop = make_loop(model, optimizer)
    pace = Pace(world, loop, make_rule(rule))
    end = loop.before_step(pace.step)
    try:
        yield pace
        pace.leave()
    finally:
        end()


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
        to: Callable[[Any], Any] | None = None,
        world: World | None = None,
    ) -> None:
        world = world or init()
        self.epoch = 0
        """The epoch that the next iteration gives."""
        self._source = as_source(data)
        self._shard = Shard(world.rank, world.size)
        self._batch_size, self._to = batch_size, to
        self._order = {"seed": seed, "shuffle": shuffle, "prefetch": prefetch}

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        if isinstance(self._source, Stream):
            raise TypeError("a stream has no known number of batches")
        return len(plan_steps(len(self._source), self._shard.size, self._batch_size))

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        served = _served.get()
        if served is None:
            served = _Served()
            _served.set(served)
        for batch in training_batches(
            self._source,
            shard=self._shard,
            batch_size=self._batch_size,
            epoch=epoch,
            **self._order,  # type: ignore[arg-type]
        ):
            served.add(self, batch.samples, self._batch_size)
            content = batch.inputs if batch.targets is None else (batch.inputs, batch.targets)
            yield map_leaves(self._to, content) if self._to else content


def shard(data: Any, batch_size: int, **options: Any) -> Batches:
    """This rank's share of the data, in batches: every sample on exactly one rank, once per epoch.

    `data` is arrays, a torch Dataset, a generator function, ... Each iteration over the result is a
    new epoch, shuffled by `seed` alike on all ranks. `to` is applied to each array (for example
    torch.from_numpy). Options: seed, shuffle, prefetch, to, world.
    """
    return Batches(data, batch_size, **options)
