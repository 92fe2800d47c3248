"""Where in your own files an exception came from: that line first, then Python's traceback."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")


def show_trace(error: BaseException) -> str:
    """Python's traceback, from the first file that is not ours, with the line of yours on top.

    The whole traceback if the exception passed through no file of yours.
    """
    frames = traceback.extract_tb(error.__traceback__)
    yours = next((frame for frame in reversed(frames) if _is_yours(frame.filename)), None)
    if yours is None:
        return "".join(traceback.format_exception(error))
    place = f"{_short(yours.filename)}, line {yours.lineno}, in {yours.name}"
    trace = _from_yours(error.__traceback__)
    told = "".join(traceback.format_exception(type(error), error, trace))
    return f"{place}, raised {type(error).__name__}:\n{told}"


def _from_yours(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames by which we got there."""
    while trace is not None and not _is_yours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_yours(file: str) -> bool:
    if file.startswith("<"):  # as <frozen runpy>
        return False
    path = Path(file).resolve()
    return not (
        any(path.is_relative_to(library) for library in (_OURS, *_LIBRARIES))
        or any(part in _INSTALLED for part in path.parts)
    )


def _short(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, or the directory is gone
        return file
