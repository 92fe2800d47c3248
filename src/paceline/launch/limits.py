"""What ranks need from the shell or container that they are started in."""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from paceline.errors import LaunchError

SHARED_MEMORY = "/dev/shm"
OPEN_FILES, OPEN_FILES_PER_RANK = 24, 8
SHARED_BYTES_PER_RANK = 8 << 20
FILE_BYTES = 16 << 20
"""Open MPI 5.0 does not start without: each rank maps a file of some 8 MB."""


def check_folder() -> None:
    """Ranks are started in the current directory."""
    try:
        Path.cwd()
    except OSError as error:
        raise LaunchError(
            f"the current directory cannot be read ({error.strerror}), it may have been removed; "
            "change to one that exists"
        ) from None


def complete_environment(environ: MutableMapping[str, str]) -> None:
    """Open MPI does not start without HOME, nor find programs without PATH."""
    if not environ.get("HOME"):
        try:
            environ["HOME"] = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:  # a user without a name, as in some containers
            environ["HOME"] = tempfile.gettempdir()
    if not environ.get("PATH"):
        environ["PATH"] = os.defpath


def check_limits(ranks: int) -> None:
    """Refuse to start so many ranks here if Open MPI would fail, with banners of its own."""
    faults = find_faults(ranks, _allow_files(_files_needed(ranks)), _file_bytes(), _shared_bytes())
    if faults:
        raise LaunchError(f"{ranks} ranks cannot be started here: {'; '.join(faults)}")


def find_faults(ranks: int, open_files: float, file_bytes: float, shared_bytes: float) -> list[str]:
    """What is too little, and how to get more.

    >>> find_faults(2, open_files=1024, file_bytes=1e9, shared_bytes=1e9)
    []
    """
    faults = []
    if open_files < (need := _files_needed(ranks)):
        faults.append(
            f"the shell allows {open_files} open files, and they need {need}; raise it: "
            "ulimit -n 1024"
        )
    if file_bytes < FILE_BYTES:
        faults.append(
            f"the shell allows files of {file_bytes} bytes, and they need {FILE_BYTES}; raise it: "
            "ulimit -f unlimited"
        )
    if shared_bytes <= (least := SHARED_BYTES_PER_RANK * ranks):
        faults.append(
            f"{SHARED_MEMORY} has {shared_bytes} bytes free, and they need more than {least}; make "
            "it larger (docker run --shm-size=1g), or start fewer ranks"
        )
    return faults


def _files_needed(ranks: int) -> int:
    return OPEN_FILES + OPEN_FILES_PER_RANK * ranks


def _allow_files(need: int) -> float:
    """How many files may be open, after raising the soft limit as far as allowed and needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return float("inf")
    if soft < need and (hard == resource.RLIM_INFINITY or hard >= need):
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
        return need
    return soft


def _file_bytes() -> float:
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def _shared_bytes() -> float:
    """Without /dev/shm, the job directory is elsewhere."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        return float("inf")
    return shutil.disk_usage(SHARED_MEMORY).free
