"""A run directory belongs to one job at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from paceline.errors import ConfigError

NAME = ".running"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems say that know no locks: there a second job is not noticed."""


class Claim:
    """Holds a run directory until it is released, or this process ends: the lock is the kernel's.

    The file says who holds it, for the message to whoever is refused.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._file = self._lock()
        known = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps(known).encode(), 0)

    def release(self) -> None:
        """Let others have the directory."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._file)

    def _lock(self) -> int:
        while True:
            file = os.open(self._path, _FLAGS, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _describe(file)
                os.close(file)
                raise ConfigError(
                    f"run directory {self._path.parent} is in use by {holder}; wait for it, end "
                    "it, or choose another run_dir"
                ) from None
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    os.close(file)
                    raise
            if self._is_named(file):
                return file
            os.close(file)  # its holder has just released it, and removed it

    def _is_named(self, file: int) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(file), self._path.stat())
        return False


def _describe(file: int) -> str:
    """Who holds it, as written in the file."""
    try:
        known = json.loads(os.pread(file, 1000, 0))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(known["since"]))
        return f"process {int(known['pid'])} on {known['host']!s:.60} since {since}"
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return "another job"
