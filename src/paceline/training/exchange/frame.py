"""What an exchange is told of the run that it belongs to."""

from __future__ import annotations

from typing import NamedTuple

from paceline.training.centre import SavedCentre


class Frame(NamedTuple):
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
