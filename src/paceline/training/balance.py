"""The costs of samples, read by one rank for all."""

from __future__ import annotations

import numpy as np

from paceline.comm import World
from paceline.comm.rank0 import on_rank0
from paceline.core.vectors import Vector
from paceline.data import Source, Stream
from paceline.data.cost import read_numbers
from paceline.data.sampling.split import Balance
from paceline.errors import ConfigError


def make_balance(
    source: Source | Stream, world: World, cost: object, bucketing: float | None
) -> Balance | None:
    """What to split the samples by; None: by count. All ranks call it together.

    Rank 0 looks into the samples, which may take long, and broadcasts what they cost.
    """
    if cost is None:
        if bucketing is not None:
            raise ConfigError(
                f"bucketing is {bucketing}, and there is no cost to sort by; set cost"
            )
        return None
    if isinstance(source, Stream):
        raise ConfigError(
            "cost says which rank gets which samples, and a stream is split as it comes; give data "
            "with a length"
        )
    return Balance(_read(source, world, cost), bucketing)


def _read(source: Source, world: World, cost: object) -> Vector:
    costs: Vector = np.empty(len(source))

    def read() -> None:
        costs[:] = read_numbers(source, cost)

    on_rank0(world, read)
    world.broadcast(costs)
    return costs
