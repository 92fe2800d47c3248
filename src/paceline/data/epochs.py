"""The batches that one rank trains on or evaluates in one pass over the data."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from paceline.data.batch import Batch
from paceline.data.prefetch import prefetched
from paceline.data.shards import (
    Shard,
    check_batch_size,
    check_enough,
    deal,
    epoch_order,
    off_boundary,
    plan_steps,
    smallest_step,
)
from paceline.data.sources import Source
from paceline.data.streams import Stream
from paceline.errors import DataError

PREFETCH_DEPTH = 2


def training_batches(
    source: Source | Stream,
    *,
    shard: Shard,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    start: int = 0,
    prefetch: int | None = None,
) -> Iterator[Batch]:
    """This rank's batches of this epoch; every rank gets the same number of them.

    Over all ranks every sample comes exactly once. `start` is what the world has already
    consumed of the epoch and must lie between two steps. `prefetch` is how many batches a
    background thread prepares ahead; None leaves it to the source, 0 starts no thread. A stream
    keeps its own order, whatever `shuffle` says.
    """
    check_batch_size(batch_size)
    if isinstance(source, Stream):
        stream = source
        return _fetch(source, lambda: _deal_stream(stream, shard, batch_size, start), prefetch)
    plan = plan_steps(len(source), shard.size, batch_size)
    first = plan.step_at(start)

    def batches() -> Iterator[Batch]:
        order = epoch_order(len(source), seed, epoch, shuffle)
        for step in range(first, len(plan)):
            begin, end = plan.bounds(step, shard.rank)
            yield source.take(order[begin:end])

    return _fetch(source, batches, prefetch)


def evaluation_batches(
    source: Source | Stream, *, shard: Shard, batch_size: int, prefetch: int | None = None
) -> Iterator[Batch]:
    """This rank's share of all samples, in order; a rank may get none.

    A source is dealt in contiguous parts. Of a stream, sample i goes to rank i % size.
    """
    check_batch_size(batch_size)
    if isinstance(source, Stream):
        stream = source
        return _fetch(source, lambda: _take_turns(stream, shard, batch_size), prefetch)
    begin, end = deal(len(source), shard.rank, shard.size)

    def batches() -> Iterator[Batch]:
        for first in range(begin, end, batch_size):
            yield source.take(np.arange(first, min(first + batch_size, end)))

    return _fetch(source, batches, prefetch)


def _fetch(
    source: Source | Stream, batches: Callable[[], Iterator[Batch]], prefetch: int | None
) -> Iterator[Batch]:
    if prefetch is None:
        prefetch = 0 if source.cheap else PREFETCH_DEPTH
    return prefetched(batches, prefetch)


def _deal_stream(stream: Stream, shard: Shard, batch_size: int, start: int) -> Iterator[Batch]:
    """Deal the stream step by step, one step read ahead, as the last remainder may join it."""
    world_batch = shard.size * batch_size
    samples = stream.samples()
    smallest = smallest_step(shard.size, batch_size)
    held = _enter(samples, start, shard.size, world_batch, smallest)
    first = start
    while held:
        ahead = list(islice(samples, world_batch))
        if 0 < len(ahead) < smallest:
            held, ahead = held + ahead, []
        begin, end = deal(len(held), shard.rank, shard.size)
        yield stream.collate(held[begin:end], np.arange(first + begin, first + end))
        first += len(held)
        held = ahead


def _enter(
    samples: Iterator[Any], start: int, size: int, world_batch: int, smallest: int
) -> list[Any]:
    """Skip what is consumed and read the first step after it."""
    skipped = sum(1 for _ in islice(samples, start))
    held = list(islice(samples, world_batch))
    if start == 0:
        check_enough(len(held), size)
    # An odd start is right only at the very end, after a step that a remainder has joined.
    elif skipped < start or (held and (start % world_batch or len(held) < smallest)):
        raise off_boundary(start, world_batch)
    return held


def _take_turns(stream: Stream, shard: Shard, batch_size: int) -> Iterator[Batch]:
    held: list[Any] = []
    places: list[int] = []
    count = 0
    for count, sample in enumerate(stream.samples(), start=1):
        if (count - 1) % shard.size != shard.rank:
            continue
        held.append(sample)
        places.append(count - 1)
        if len(held) == batch_size:
            yield stream.collate(held, np.array(places))
            held, places = [], []
    if count == 0:
        raise DataError(f"{stream.name} holds no samples; expected at least 1")
    if held:
        yield stream.collate(held, np.array(places))
