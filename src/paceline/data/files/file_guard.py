"""A file that is trained on must stay as it is: one that is written to meanwhile is noticed."""

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
    """A file in use, kept open: who replaces it under its name leaves this one as it is.

    `copied`: all of it is in memory, so a change is worth a warning and no more.
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
        """Of the file as it was opened."""
        return self._seen[0]

    @property
    def content(self) -> tuple[int, int]:
        """Size and checksum of some blocks, to compare with when it is opened again."""
        return self.size_bytes, self._sum

    def check(self) -> None:
        """Raise if the file is not what it was; takes a microsecond or two.

        A new time alone may be a `touch`, as people do where old files are removed: that is told
        and allowed if some blocks of the file are the same.
        """
        now = self._look()
        if now == self._seen:
            return
        text = f"{self.path} changed while it was trained on ({_tell(self._seen)}, now {_tell(now)}"
        if self.copied:
            log.warning("%s); this run goes on with what it read at its start", text)
        elif now[0] != self._seen[0] or self._sum_of_blocks() != self._sum:
            raise DataError(
                f"{text}); start again, and write new data to another file while a run reads this"
            )
        else:
            log.warning("%s, and the same content where looked at); this run goes on", text)
        self._seen = now

    def is_at(self, path: Path) -> bool:
        """Whether that path still leads to this file."""
        return os.path.samestat(path.stat(), os.fstat(self._descriptor))

    def _look(self) -> tuple[int, int]:
        try:
            found = os.fstat(self._descriptor)
        except OSError as error:  # a server of files that is gone, or has lost this one
            raise DataError(
                f"{self.path} cannot be read any more: {error.strerror}; see whether it is there"
            ) from error
        return found.st_size, found.st_mtime_ns

    def _sum_of_blocks(self) -> int:
        """A checksum of blocks from the first to the last. Read, as a map would end the process
        if the file were cut meanwhile."""
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
