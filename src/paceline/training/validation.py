"""Exact validation: every sample once, on some rank."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from paceline.comm import World
from paceline.data import Shard, evaluation_batches
from paceline.errors import TrainingError
from paceline.frameworks import Replica
from paceline.observe import Stopwatch

_SUMS = ("loss", "samples", "correct", "counted")


def validate(
    world: World, replica: Replica, source: Any, batch_size: int, watch: Stopwatch
) -> dict[str, float | None]:
    """val_loss and val_accuracy of the replicas over the whole source, the same on every rank."""
    sums = dict.fromkeys(_SUMS, 0.0)
    watch.lap("compute")
    for batch in evaluation_batches(
        source, shard=Shard(world.rank, world.size), batch_size=batch_size
    ):
        watch.lap("data")
        found = replica.evaluate(batch)
        if not math.isfinite(found["loss"]):
            raise TrainingError(
                f"the validation loss is {found['loss']} on rank {world.rank}, for "
                f"{batch.where()}; look at these samples, or lower the learning rate"
            )
        for name, value in found.items():
            sums[name] += value
        watch.lap("compute")
    world.barrier()
    watch.lap("wait")
    totals = np.array([sums[name] for name in _SUMS])
    world.all_reduce(totals)
    watch.lap("communication")
    loss, samples, correct, counted = totals
    return {
        "val_loss": float(loss / samples) if samples else None,
        "val_accuracy": float(correct / counted) if counted else None,
    }
