"""The batches that one rank trains on or evaluates in one pass over the data."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from paceline.data.batch import Batch
from paceline.data.sampling.partial_epoch import EpochRemainder, check_remainder
from paceline.data.sampling.prefetch import prefetched
from paceline.data.sampling.shards import (
    Shard,
    check_batch_size,
    order_of,
    rank_bounds,
    smallest_step,
)
from paceline.data.sampling.split import CountSplit, EpochSplit
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
    remainder: EpochRemainder | None = None,
    split: EpochSplit | None = None,
    taken: int = 0,
    prefetch: int | None = None,
    loaders: int = 1,
) -> Iterator[Batch]:
    """This rank's batches of this epoch; every rank gets the same number of them.

    Over all ranks every sample comes exactly once. `remainder` is what was left of an interrupted
    epoch (then a rank may get none), and `taken` how many of its batches this rank has had. `split`
    says which samples each rank takes (`split_epoch`), by default equally many.
    `prefetch` is how many batches are prepared ahead, by so many `loaders` (threads); None leaves
    it to the source, 0 starts no thread. A stream keeps its own order, whatever `shuffle` says, and
    is read by one thread.
    """
    check_batch_size(batch_size)
    remainder = remainder or EpochRemainder(shard.size, batch_size)
    if isinstance(source, Stream):
        stream = source
        depth = depth_ahead(source, prefetch, loaders=1)
        return prefetched(lambda: _split_stream(stream, shard, remainder, taken), depth)
    check_remainder(remainder, shard, len(source))
    whole = split or CountSplit(remainder, len(source))

    def shares() -> Iterator[np.ndarray]:
        order = order_of(source, seed, epoch, shuffle)
        for step in range(taken, whole.batches(shard.rank)):
            yield order[whole.share(step, shard.rank)]

    depth = depth_ahead(source, prefetch, loaders)
    return prefetched(shares, depth, loaders, source.take)


def evaluation_batches(
    source: Source | Stream,
    *,
    shard: Shard,
    batch_size: int,
    prefetch: int | None = None,
    loaders: int = 1,
) -> Iterator[Batch]:
    """This rank's share of all samples, in order; a rank may get none.

    A source is split into contiguous parts. Of a stream, sample i goes to rank i % size.
    """
    check_batch_size(batch_size)
    if isinstance(source, Stream):
        stream = source
        depth = depth_ahead(source, prefetch, loaders=1)
        return prefetched(lambda: _take_turns(stream, shard, batch_size), depth)
    begin, end = rank_bounds(len(source), shard.rank, shard.size)

    def shares() -> Iterator[np.ndarray]:
        for first in range(begin, end, batch_size):
            yield np.arange(first, min(first + batch_size, end))

    depth = depth_ahead(source, prefetch, loaders)
    return prefetched(shares, depth, loaders, source.take)


def depth_ahead(source: Source | Stream, prefetch: int | None, loaders: int) -> int:
    """How many batches are prepared ahead: as set, or by default as many as pay off."""
    if prefetch is not None:
        return prefetch
    return 0 if source.cheap and loaders == 1 else PREFETCH_DEPTH * loaders


def _split_stream(
    stream: Stream, shard: Shard, remainder: EpochRemainder, taken: int
) -> Iterator[Batch]:
    """Split the stream step by step, reading one step ahead, since what is left over at the end
    may join the last step."""
    world_batch = shard.size * remainder.batch_size
    samples = stream.samples()
    smallest = smallest_step(shard.size, remainder.batch_size)
    first = remainder.enter_stream(taken)
    _skip(samples, first, stream)
    held = list(islice(samples, world_batch))
    if not first:
        check_remainder(remainder, shard, len(held))
    while held:
        ahead = list(islice(samples, world_batch))
        if 0 < len(ahead) < smallest:
            held, ahead = held + ahead, []
        few = first > 0 and len(held) < smallest  # the rest of an interrupted epoch
        sharers = max(1, len(held) // 2) if few else shard.size
        if shard.rank >= sharers:
            return
        begin, end = rank_bounds(len(held), shard.rank, sharers)
        yield stream.collate(held[begin:end], np.arange(first + begin, first + end))
        first += len(held)
        held = ahead


def _skip(samples: Iterator[Any], count: int, stream: Stream) -> None:
    """Skip what the run has trained on before it was interrupted."""
    skipped = sum(1 for _ in islice(samples, count))
    if skipped < count:
        raise DataError(
            f"{stream.name} ended after {skipped} samples, and {count} were trained on before the "
            "run was interrupted; it must give the same samples again"
        )


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
