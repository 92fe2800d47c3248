"""What makes `fit` on many ranks quietly wrong: warned of when it begins.

Keras tells its callbacks neither what `fit` trains on nor who else is in their list, so both are
looked up in the calls that led here.
"""

from __future__ import annotations

import logging
from types import FrameType
from typing import Any

from paceline.comm import World
from paceline.data import as_source
from paceline.data.fingerprint import sum_samples
from paceline.errors import PacelineError
from paceline.keras.batches import ShardedBatches

_log = logging.getLogger("paceline.keras")
_DEPTH = 6
"""Calls between `fit` and a callback's method."""


def warn_of_mistakes(world: World, callback: object, frame: FrameType | None) -> None:
    """All ranks call it together, with the frame of the method that Keras called."""
    found = _find_calls(frame)
    before = _callbacks_before(callback, found.get("list"))
    data = found.get("fit", {}).get("x")
    sums = world.allgather_values(_sum(data))
    if world.size == 1 or world.rank:
        return
    if sums[0] is not None and len(set(sums)) == 1:
        _log.warning(
            "model.fit got the same arrays on all %d ranks, so each of them trains on everything; "
            "give it paceline.keras.shard(x, y, batch_size=...), and shuffle=False",
            world.size,
        )
    if before:
        _log.warning(
            "%s before KeepPace in the list of callbacks, so each rank follows its own figures, "
            "not the means over all; put KeepPace first",
            f"{', '.join(before)} {'stand' if len(before) > 1 else 'stands'}",
        )


def _find_calls(frame: FrameType | None) -> dict[str, dict[str, Any]]:
    """The variables of the list of callbacks that calls us, and of `fit`."""
    found: dict[str, dict[str, Any]] = {}
    for _ in range(_DEPTH):
        if frame is None:
            break
        if "list" not in found and hasattr(frame.f_locals.get("self"), "callbacks"):
            found["list"] = frame.f_locals
        if frame.f_code.co_name == "fit":
            found["fit"] = frame.f_locals
            break
        frame = frame.f_back
    return found


def _callbacks_before(callback: object, variables: dict[str, Any] | None) -> list[str]:
    listed = [] if variables is None else list(variables["self"].callbacks)
    if callback not in listed:
        return []
    return [type(each).__name__ for each in listed[: listed.index(callback)]]


def _sum(data: object) -> int | None:
    """A checksum of what `fit` was given, if that is arrays that nobody has sharded."""
    if data is None or isinstance(data, ShardedBatches):
        return None
    try:
        return sum_samples(as_source(data))
    except PacelineError:
        return None
