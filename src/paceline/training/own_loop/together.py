"""What the ranks of a loop say and work out together."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from paceline.comm import World
from paceline.runtime.world import init


def print(*values: Any, world: World | None = None, **options: Any) -> None:
    """Print once, on rank 0, at once; any rank may call it, alone or with others."""
    if (world or init()).rank == 0:
        builtins.print(*values, **{"flush": True, **options})  # noqa: T201


def mean(value: Any, weight: float = 1.0, *, world: World | None = None) -> float:
    """The mean over all ranks of a number, each counted by its `weight`; the same on every rank.

    For a mean over samples, give this rank's mean and how many samples it is of. All ranks call it
    together, and one that has nothing to say gives the weight 0. NaN if all weights are 0.
    """
    return weighted_mean(world or init(), float(value), float(weight))


def weighted_mean(world: World, value: float, weight: float) -> float:
    """The mean over the ranks that give a weight; NaN if none does."""
    sums = np.array([value * weight if weight else 0.0, weight])
    world.all_reduce(sums)
    return float(sums[0] / sums[1]) if sums[1] else float("nan")
