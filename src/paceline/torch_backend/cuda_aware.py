"""Whether the MPI of this process reads and writes CUDA memory directly."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from paceline.errors import LaunchError

SWITCH = "PACELINE_CUDA_AWARE_MPI"
"""The variable that overrides, with 1 or 0, what MPI reports."""

_QUESTION = "MPIX_Query_cuda_support"
"""In Open MPI, MPICH and MVAPICH."""
_QUESTION_OF_KIND = "MPIX_GPU_query_support"
"""In MPICH, for several vendors of GPUs; Cray's MPICH has only this one."""
_CUDA = 0
"""MPIX_GPU_SUPPORT_CUDA."""
_MAPS = Path("/proc/self/maps")


def is_cuda_aware(
    env: Mapping[str, str] = os.environ, libraries: Iterable[object] | None = None
) -> bool:
    """Whether MPI takes CUDA memory: by the variable, or else by what MPI reports.

    >>> is_cuda_aware({"PACELINE_CUDA_AWARE_MPI": "1"})
    True
    """
    chosen = env.get(SWITCH, "")
    if chosen not in ("", "0", "1"):
        raise LaunchError(
            f"{SWITCH} is {chosen!r}, expected 1 (MPI takes CUDA memory) or 0 (it does not). "
            "Unset it to ask MPI"
        )
    if chosen:
        return chosen == "1"
    return any(map(_reports_support, loaded_libraries() if libraries is None else libraries))


def loaded_libraries(maps: Path = _MAPS) -> list[ctypes.CDLL]:
    """The MPI libraries of this process; mpi4py does not load their symbols globally."""
    found: list[ctypes.CDLL] = []
    for path in find_libraries(maps.read_text() if maps.exists() else ""):
        with contextlib.suppress(OSError):  # replaced on disk since it was loaded
            found.append(ctypes.CDLL(path))
    return found


def find_libraries(maps: str) -> list[str]:
    """The paths of MPI libraries among the files that a process has mapped.

    >>> find_libraries("7f10-7f20 r-xp 00000000 08:01 42   /opt/mpi/lib/libmpi.so.40")
    ['/opt/mpi/lib/libmpi.so.40']
    """
    paths = {line[line.find("/") :] for line in maps.splitlines() if "/" in line}
    return sorted(path for path in paths if Path(path).name.startswith("libmpi"))


def _reports_support(library: object) -> bool:
    if hasattr(library, _QUESTION):
        return bool(getattr(library, _QUESTION)() == 1)
    if hasattr(library, _QUESTION_OF_KIND):
        answer = ctypes.c_int(0)
        failed = getattr(library, _QUESTION_OF_KIND)(_CUDA, ctypes.byref(answer))
        return not failed and answer.value != 0
    return False
