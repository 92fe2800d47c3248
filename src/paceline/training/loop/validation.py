"""Exact validation: every sample once, on some rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from time import perf_counter

import numpy as np

from paceline.comm import World
from paceline.core.vectors import Vector
from paceline.data import Batch, Shard, Source, Stream, evaluation_batches
from paceline.errors import TrainingError
from paceline.frameworks import Replica
from paceline.frameworks.replica import WithMetrics
from paceline.observe import Stopwatch

_SUMS = ("loss", "samples", "correct", "counted")
_ROUND_S = 0.25
"""About how often ranks that validate ask each other whether to give up."""


def validate(
    world: World,
    replica: Replica,
    source: Source | Stream,
    batch_size: int,
    watch: Stopwatch,
    loaders: int = 1,
    is_wanted: Callable[[], bool] = lambda: False,
) -> dict[str, float | None] | None:
    """val_loss and val_accuracy of the replicas over the whole source, the same on every rank.

    A replica with `figures` may give further sums, and makes further figures of them. None if a
    rank `is_wanted` elsewhere: then all give up, within a second or after a batch.
    """
    sums: dict[str, float | Vector] = dict.fromkeys(_SUMS, 0.0)
    watch.lap("compute")
    batches = evaluation_batches(
        source, shard=Shard(world.rank, world.size), batch_size=batch_size, loaders=loaders
    )
    if not _evaluate(world, replica, iter(batches), sums, watch, is_wanted):
        return None
    with_metrics = replica if isinstance(replica, WithMetrics) else None
    shapes = _known_to_all(world, sums) if with_metrics is not None else {}
    parts = [np.ravel(sums.get(name, np.zeros(shape))) for name, shape in shapes.items()]
    totals = np.concatenate([[float(sums[name]) for name in _SUMS], *parts])
    world.all_reduce(totals)
    watch.lap("communication")
    loss, samples, correct, counted = totals[: len(_SUMS)]
    figures: dict[str, float | None] = {
        "val_loss": float(loss / samples) if samples else None,
        "val_accuracy": float(correct / counted) if counted else None,
    }
    if with_metrics is not None and samples:
        ends = np.cumsum([len(_SUMS), *map(np.size, parts)])
        pieces = np.split(totals, ends)[1:-1]
        figures |= {
            f"val_{name}": value
            for name, value in with_metrics.figures(dict(zip(shapes, pieces, strict=True))).items()
        }
    return figures


def _evaluate(
    world: World,
    replica: Replica,
    batches: Iterator[Batch],
    sums: dict[str, float | Vector],
    watch: Stopwatch,
    is_wanted: Callable[[], bool],
) -> bool:
    """Add up what the batches give, in rounds after which all ranks agree to go on; False if they
    give up. All measure a round together, so all choose the same length for the next."""
    length = 1
    while True:
        began, done = perf_counter(), 0
        for batch in islice(batches, length):
            watch.lap("data")
            found = replica.evaluate(batch)
            if not math.isfinite(found["loss"]):
                raise TrainingError(
                    f"the validation loss is {found['loss']} on rank {world.rank}, for "
                    f"{batch.where()}; look at these samples, or lower the learning rate"
                )
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + value
            done += 1
            watch.lap("compute")
        votes = np.array([is_wanted(), done == length, perf_counter() - began])
        world.all_reduce(votes)
        watch.lap("wait")
        wanted, more, seconds = votes.tolist()
        if wanted:
            return False
        if not more:
            return True
        if seconds < world.size * _ROUND_S / 2:
            length *= 2
        elif seconds > world.size * _ROUND_S * 2:
            length = max(1, length // 2)


def _known_to_all(world: World, sums: dict[str, float | Vector]) -> dict[str, tuple[int, ...]]:
    """The further sums that every rank with samples has, and their shapes."""
    own = {name: np.shape(value) for name, value in sums.items() if name not in _SUMS}
    everyone = [
        other for other, samples in world.allgather_values((own, sums["samples"])) if samples
    ]
    if not everyone:
        return {}
    first = everyone[0]
    return {
        name: shape
        for name, shape in first.items()
        if all(other.get(name) == shape for other in everyone)
    }
