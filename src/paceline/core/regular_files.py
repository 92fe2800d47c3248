"""Open regular files only: names from outside may lead to pipes or devices that block."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

NOT_REGULAR = "it is a pipe or device, expected a file"


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; an OSError if it is not a regular file.

    Opening a pipe would wait for its writer, and reading a device may never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check(path, os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def check_regular(path: Path) -> None:
    """Raise an OSError unless the path leads to a regular file."""
    _check(path, path.stat().st_mode)


def is_regular(path: Path) -> bool:
    """Whether there is such a file; False for names that no file can have."""
    try:
        check_regular(path)
    except (OSError, ValueError):
        return False
    return True


def _check(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
