"""Exact validation: every sample once, on some rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.comm import World
from paceline.data import Shard, evaluation_batches
from paceline.errors import TrainingError
from paceline.frameworks import Replica
from paceline.observe import Stopwatch

_SUMS = ("loss", "samples", "correct", "counted")


def validate(
    world: World,
    replica: Replica,
    source: Any,
    batch_size: int,
    watch: Stopwatch,
    loaders: int = 1,
    after_batch: Callable[[], None] = lambda: None,
) -> dict[str, float | None]:
    """val_loss and val_accuracy of the replicas over the whole source, the same on every rank.

    A replica with `figures` may give further sums, and makes further figures of them. On a rank
    that validates alone, `after_batch` may raise to give up.
    """
    sums: dict[str, Any] = dict.fromkeys(_SUMS, 0.0)
    watch.lap("compute")
    for batch in evaluation_batches(
        source, shard=Shard(world.rank, world.size), batch_size=batch_size, loaders=loaders
    ):
        watch.lap("data")
        found = replica.evaluate(batch)
        if not math.isfinite(found["loss"]):
            raise TrainingError(
                f"the validation loss is {found['loss']} on rank {world.rank}, for "
                f"{batch.where()}; look at these samples, or lower the learning rate"
            )
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + value
        watch.lap("compute")
        after_batch()
    world.barrier()
    watch.lap("wait")
    make_figures = getattr(replica, "figures", None)
    shapes = _known_to_all(world, sums) if make_figures is not None else {}
    parts = [np.ravel(sums.get(name, np.zeros(shape))) for name, shape in shapes.items()]
    totals = np.concatenate([[float(sums[name]) for name in _SUMS], *parts])
    world.all_reduce(totals)
    watch.lap("communication")
    loss, samples, correct, counted = totals[: len(_SUMS)]
    figures: dict[str, float | None] = {
        "val_loss": float(loss / samples) if samples else None,
        "val_accuracy": float(correct / counted) if counted else None,
    }
    if make_figures is not None and samples:
        ends = np.cumsum([len(_SUMS), *map(np.size, parts)])
        pieces = np.split(totals, ends)[1:-1]
        figures |= {
            f"val_{name}": value
            for name, value in make_figures(dict(zip(shapes, pieces, strict=True))).items()
        }
    return figures


def _known_to_all(world: World, sums: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The further sums that every rank with samples has, and their shapes."""
    own = {name: np.shape(value) for name, value in sums.items() if name not in _SUMS}
    everyone = [other for other, samples in world.share((own, sums["samples"])) if samples]
    if not everyone:
        return {}
    first = everyone[0]
    return {
        name: shape
        for name, shape in first.items()
        if all(other.get(name) == shape for other in everyone)
    }
