"""What a thread does, read from its stack: the thread itself pays nothing."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from functools import partial
from itertools import accumulate, chain, repeat, starmap, takewhile
from operator import is_not, methodcaller
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from paceline.runtime.watchdog.stall_detector import State

_PACELINE = str(Path(__file__).parents[2]) + os.sep
_COMM = _PACELINE + "comm" + os.sep
_STEPPING = tuple(_PACELINE + name + os.sep for name in ("training", "sync", "keras"))
_TORCH_BACKEND = _PACELINE + "torch_backend" + os.sep
_PREFETCH = _PACELINE + str(Path("data", "sampling", "prefetch.py"))
_DEEPEST = 1000
_is_frame = partial(is_not, None)
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})


class Activity(NamedTuple):
    """The activity of a thread, and the call into `comm` in which it waits."""

    state: State
    where: str
    call: FrameType | None


def read_activity(thread: int) -> Activity:
    """Read what a thread does from its stack.

    It waits for other ranks in `comm`, or, where steps are taken, for a thread of ours that does.
    """
    stack = read_stack(thread)
    if not stack:
        return Activity("busy", "a thread that has ended", None)
    call = next((frame for frame in reversed(stack) if _lies_in(frame, _COMM)), None)
    place = _place(stack)
    asleep = stack[0].f_code.co_filename == threading.__file__ and _lies_in(place, _STEPPING)
    if call is not None or asleep:
        return Activity("waiting", _describe(place), call)
    if _lies_in(place, _PREFETCH):  # what keeps it busy is in the thread that prepares batches
        others = (read_stack(ident) for ident in sys._current_frames() if ident != thread)
        loaders = (other for other in others if any(_lies_in(f, _PREFETCH) for f in other))
        places = list(map(_place, loaders))  # of several, some may have nothing to do
        busy = (found for found in places if not _lies_in(found, _PREFETCH))
        place = next(busy, places[0] if places else place)
    return Activity("busy", _describe(place), None)


def read_stack(thread: int) -> list[FrameType]:
    """The frames of a thread, innermost first; none if it has ended.

    One call into C from the first frame to the last. In a loop of Python the thread could run on
    in between, and `f_back` of a frame that has meanwhile ended is not valid: a loop over
    a torch program's stack crashes CPython 3.11.7 within a minute.
    """
    first = map(methodcaller("get", thread), starmap(sys._current_frames, [()]))
    steps = chain(first, repeat("f_back", _DEEPEST))
    return list(takewhile(_is_frame, accumulate(steps, getattr)))


def _lies_in(frame: FrameType, place: str | tuple[str, ...]) -> bool:
    return frame.f_code.co_filename.startswith(place)


def _place(stack: list[FrameType]) -> FrameType:
    """The innermost frame of interest: of a user's code, or of ours."""
    return next((frame for frame in stack if _is_of_interest(frame.f_code.co_filename)), stack[0])


def _is_of_interest(file: str) -> bool:
    if file.startswith(_PACELINE):
        return not file.startswith((_COMM, _TORCH_BACKEND))
    return not file.startswith((*_LIBRARIES, "<frozen "))


def _describe(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
