"""Running something on rank 0 for all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from paceline.comm import World
from paceline.errors import PacelineError, WorldError

T = TypeVar("T")


def on_rank0(world: World, action: Callable[[], T]) -> T:
    """Run the action on rank 0; return its small result, or raise its error, on all ranks."""
    value: T | None = None
    error: Exception | None = None
    shared: PacelineError | None = None
    if world.rank == 0:
        try:
            value = action()
        except Exception as raised:
            error = raised
            other = WorldError(f"rank 0 failed: {raised!r}")
            shared = raised if isinstance(raised, PacelineError) else other
    value, shared = world.bcast_value((value, shared))
    if shared is not None:
        raise error or shared
    return value  # type: ignore[return-value]
