"""How long this thread was ready to run and had no core."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class QueueClock:
    """Seconds that this thread was ready to run and had no core; 0 where the system does not say.

    Linux counts them per thread. The file stays open, since opening it costs more than reading.
    """

    def __init__(self, path: Path = _SCHEDSTAT) -> None:
        self._thread, self._file = threading.get_ident(), -1
        with suppress(OSError):
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> float:
        if self._file < 0 or threading.get_ident() != self._thread:
            return 0.0
        with suppress(OSError, ValueError, IndexError):
            return int(os.pread(self._file, 64, 0).split()[1]) * 1e-9
        return 0.0

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()
