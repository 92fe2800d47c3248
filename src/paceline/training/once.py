"""What one rank does for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from paceline.comm import World
from paceline.errors import PacelineError

T = TypeVar("T")


def once(world: World, action: Callable[[], T]) -> T:
    """Run the action on rank 0 and give all ranks its small result, or its error."""
    value: T | None = None
    error: PacelineError | None = None
    if world.rank == 0:
        try:
            value = action()
        except PacelineError as raised:
            error = raised
    value, error = world.tell((value, error))
    if error is not None:
        raise error
    return value  # type: ignore[return-value]
