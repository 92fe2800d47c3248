"""What an exchange is told of the run that it belongs to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.comm import World
from paceline.sync.saved import SavedCentre

_log = logging.getLogger("paceline.training")

Fail = Callable[[Any, BaseException], object]
"""Ends all ranks of a world for an error of this one."""


def abort(world: World, error: BaseException) -> None:
    """The plainest way to end them."""
    _log.error("rank %d: %s", world.rank, error)
    world.abort(1)


class ExchangeContext(NamedTuple):
    """Facts of the run, the same on all ranks."""

    number: int = 0
    """Tells the exchanges of one program apart."""
    batches: int = 0
    """Of the whole run, to be dealt to workers that go at their own pace."""
    seed: int = 0
    """Of what is done by chance."""
    clip_norm: float | None = None
    """The largest norm of the averaged gradient."""
    share: bool = True
    """Whether ranks of a node may keep one copy of the parameters together."""
    saved: SavedCentre | None = None
    """The centre of a run that goes on."""
    fail: Fail = abort
    """Called when something fails beside the thread that trains."""
