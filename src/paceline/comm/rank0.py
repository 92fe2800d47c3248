"""What one rank does for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from paceline.comm import World
from paceline.errors import PacelineError, WorldError

T = TypeVar("T")


def on_rank0(world: World, action: Callable[[], T]) -> T:
    """Run the action on rank 0 and give all ranks its small result, or its error."""
    value: T | None = None
    error: Exception | None = None
    told: PacelineError | None = None
    if world.rank == 0:
        try:
            value = action()
        except Exception as raised:
            error = raised
            other = WorldError(f"rank 0 failed: {raised!r}")
            told = raised if isinstance(raised, PacelineError) else other
    value, told = world.bcast_value((value, told))
    if told is not None:
        raise error or told
    return value  # type: ignore[return-value]
