"""Notice files that change while a run trains on them."""

import logging
import os
import weakref
import zlib
from datetime import UTC, datetime
from pathlib import Path

from paceline.errors import DataError

log = logging.getLogger(__name__)

BLOCKS = 16
BLOCK_BYTES = 4096


class FileGuard:
    """A file in use, kept open: replacing it under its name does not affect this one.

    `copied`: all of it is in memory, so a change is worth only a warning.
    """

    def __init__(self, path: Path, copied: bool = False) -> None:
        self.path = path
        self.copied = copied
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self._seen = self._look()
        self._sum = self._sum_of_blocks()

    @property
    def size_bytes(self) -> int:
        """Its size when it was opened."""
        return self._seen[0]

    @property
    def content(self) -> tuple[int, int]:
        """Size and checksum of some blocks, to compare with when it is opened again."""
        return self.size_bytes, self._sum

    def check(self) -> None:
        """Raise if the file has changed; takes a microsecond or two.

        A new time alone may be a `touch`, common where old files are purged: that is logged and
        allowed if some blocks of the file are the same.
        """
        now = self._look()
        if now == self._seen:
            return
        text = f"{self.path} changed while it was trained on ({_tell(self._seen)}, now {_tell(now)}"
        if self.copied:
            log.warning("%s); this run continues with what it read at its start", text)
        elif now[0] != self._seen[0] or self._sum_of_blocks() != self._sum:
            raise DataError(
                f"{text}); start again, and write new data to another file while a run reads this"
            )
        else:
            log.warning("%s, and the same content where checked); this run continues", text)
        self._seen = now

    def is_at(self, path: Path) -> bool:
        """Whether that path still leads to this file."""
        return os.path.samestat(path.stat(), os.fstat(self._descriptor))

    def _look(self) -> tuple[int, int]:
        try:
            found = os.fstat(self._descriptor)
        except OSError as error:  # a file server that is gone, or has lost this file
            raise DataError(
                f"{self.path} can no longer be read: {error.strerror}; check that it is there"
            ) from error
        return found.st_size, found.st_mtime_ns

    def _sum_of_blocks(self) -> int:
        """A checksum of blocks from the first to the last. Read, not mapped: a map would end the
        process if the file were truncated meanwhile."""
        last = max(0, self.size_bytes - BLOCK_BYTES)
        places = sorted({last * block // (BLOCKS - 1) for block in range(BLOCKS)})
        found = 0
        try:
            for place in places:
                found = zlib.crc32(os.pread(self._descriptor, BLOCK_BYTES, place), found)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}") from error
        return found


def _tell(seen: tuple[int, int]) -> str:
    size_bytes, time_ns = seen
    time = datetime.fromtimestamp(time_ns / 1e9, UTC)
    return f"{size_bytes} bytes of {time:%Y-%m-%d %H:%M:%S.%f} UTC"
