"""What rank 0 says on stderr, for programs of tests whose other ranks wait for it.

So a rank keeps the others waiting for as long as they need to notice it, however busy the machine
is, and not for a number of seconds.
"""

from __future__ import annotations

import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

HANG_S = 60.0


class Told:
    """Stands in for stderr on rank 0, and notes what is written to it in a file."""

    def __init__(self, file: Path) -> None:
        self._plain, self._file = sys.stderr, file

    def write(self, text: str) -> int:
        written = self._plain.write(text)
        with suppress(OSError), self._file.open("a") as file:  # its disk may be full on purpose
            file.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def wait_until_told(file: Path, pattern: str, times: int = 1) -> None:
    """Return when rank 0 has said this, so many times."""
    end = time.monotonic() + HANG_S
    while count(file, pattern) < times:
        assert time.monotonic() < end, f"{pattern!r} was not said {times} times"
        time.sleep(0.05)


def count(file: Path, pattern: str) -> int:
    """How often rank 0 has said this."""
    return len(re.findall(pattern, file.read_text())) if file.exists() else 0
