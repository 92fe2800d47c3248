"""Files of a data set copied once to each node, where its ranks read them from.

It works without messages, through a folder that the ranks of a node share. The first rank to lock
a file copies it, so that several ranks copy several files at a time; the others wait. A lock ends
with its holder, so the next rank makes a copy that was interrupted. Whatever goes wrong with a
copy, the original can still be read.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.core.quantities import show_bytes
from paceline.data.cache.shared_folder import (
    PREFIX,
    join,
    remove_if_unused,
    remove_stale,
    start_reaper,
)
from paceline.errors import ConfigError

log = logging.getLogger(__name__)

STALLED_S = 60.0
"""After so long without progress the others read the original."""
_PAUSE_S = 0.02
_LONGEST_NAME = 100


@dataclass(frozen=True)
class _Copy:
    """A file, and where its copy goes."""

    source: Path
    target: Path
    size_bytes: int
    time_ns: int

    @classmethod
    def of(cls, source: Path, folder: Path) -> "_Copy":
        found = source.stat()
        # A file that was rewritten has another key, and never gets the old copy.
        key = f"{source.resolve()}\0{found.st_size}\0{found.st_mtime_ns}"
        digest = hashlib.sha256(os.fsencode(key)).hexdigest()[:16]
        target = folder / f"{digest}-{source.name[-_LONGEST_NAME:]}"
        return cls(source, target, found.st_size, found.st_mtime_ns)

    def beside(self, suffix: str) -> Path:
        """A file that belongs to this copy."""
        return self.target.with_name(f"{self.target.name}.{suffix}")

    @property
    def is_done(self) -> bool:
        """Whether it was made, or failed."""
        return self.target.exists() or self.beside("failed").exists()


class NodeCache:
    """Copies of files in a folder of this run on this node, up to a limit.

    `token` is the same on all ranks of the run. All ranks of a node ask for the same files in the
    same order. Nothing is made before the first file is asked for.
    """

    def __init__(self, directory: Path, token: str, limit_bytes: int | None = None) -> None:
        self.folder = directory.expanduser().absolute() / f"{PREFIX}{token}"
        self._limit_bytes = limit_bytes
        self._limit = self._left_bytes = 0
        self._held: int | None = None
        self._copies: dict[Path, bool] = {}

    def fetch(self, paths: Sequence[Path]) -> list[Path]:
        """Where to read these files: the copies, or the originals where there are none."""
        began = time.perf_counter()
        self._join()
        copies = [self._plan(path) for path in paths]
        wanted = [copy for copy in dict.fromkeys(copies) if copy and self._copies[copy.target]]
        # First what no other rank is copying, then what others have not finished.
        for copy in [copy for copy in wanted if not _copy_once(copy, wait=False)]:
            _copy_once(copy, wait=True)
        pairs = zip(paths, copies, strict=True)
        found = [c.target if c and c.target.exists() else path for path, c in pairs]
        self._log_result(paths, found, time.perf_counter() - began)
        return found

    def close(self) -> None:
        """Let go of the copies; the last rank of the node removes them."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
            remove_if_unused(self.folder)

    def _join(self) -> None:
        if self._held is not None:
            return
        try:
            remove_stale(self.folder.parent)
            self._held, made = join(self.folder)
            if made:
                start_reaper(self.folder)
            self._limit = self._left_bytes = self._agree_on_limit()
        except OSError as error:
            raise ConfigError(
                f"data.cache_dir: {self.folder} cannot be made: {error.strerror}; name a folder "
                "that every node can write to, on a disk of its own or in /dev/shm"
            ) from error

    def _agree_on_limit(self) -> int:
        """Free space changes while others copy: the first rank of the node decides for all."""
        limit = self._limit_bytes
        if limit is None:
            limit = shutil.disk_usage(self.folder).free // 2
        mine, agreed = self.folder / f"limit-{os.getpid()}-{id(self)}", self.folder / "limit"
        mine.write_text(str(limit))
        with suppress(FileExistsError):
            os.link(mine, agreed)
        mine.unlink()
        return int(agreed.read_text())

    def _plan(self, path: Path) -> _Copy | None:
        """The copy of a file, counted once; None if there is no such file: opening reports that."""
        try:
            copy = _Copy.of(path, self.folder)
        except OSError:
            return None
        if copy.target not in self._copies:
            fits = copy.size_bytes <= self._left_bytes
            self._copies[copy.target] = fits
            self._left_bytes -= copy.size_bytes if fits else 0
        return copy

    def _log_result(self, paths: Sequence[Path], found: Sequence[Path], seconds: float) -> None:
        copied = [new for old, new in zip(paths, found, strict=True) if old != new]
        size = show_bytes(sum(path.stat().st_size for path in copied))
        text = f"{len(copied)} of {len(paths)} files ({size}) copied to {self.folder}"
        left = len(paths) - len(copied)
        limit = show_bytes(self._limit)
        rest = f"; {left} are read in place (the limit is {limit})" if left else ""
        log.info("%s in %.1f s%s", text, seconds, rest)


def _copy_once(copy: _Copy, wait: bool) -> bool:
    """Copy the file unless it is done; False if another rank is copying it and `wait` is False."""
    if copy.is_done:
        return True
    with _locked(copy, wait) as locked:
        if locked and not copy.is_done:
            _make(copy)
        return locked


@contextmanager
def _locked(copy: _Copy, wait: bool) -> Iterator[bool]:
    """Hold the lock of this copy; yields whether it could be taken."""
    lock = os.open(copy.beside("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _lock(lock) or (wait and _wait(copy, lock))
    finally:
        os.close(lock)


def _lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(copy: _Copy, lock: int) -> bool:
    """Wait for the rank that copies the file, as long as the copy grows."""
    size, since = -1, time.monotonic()
    while not _lock(lock):
        now = _size_of(copy.beside("partial"))
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > STALLED_S:
            log.warning(
                "the copy of %s by another rank has not grown for %.0f s; this rank reads the "
                "file itself",
                copy.source,
                STALLED_S,
            )
            return False
        time.sleep(_PAUSE_S)
    return True


def _make(copy: _Copy) -> None:
    partial = copy.beside("partial")
    try:
        shutil.copyfile(copy.source, partial)
        found = copy.source.stat()
        if (found.st_size, found.st_mtime_ns) != (copy.size_bytes, copy.time_ns):
            raise OSError(0, "it was written to meanwhile")
        partial.rename(copy.target)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
            copy.beside("failed").touch()
        log.warning(
            "%s cannot be copied to %s (%s); it is read in place",
            copy.source,
            copy.target.parent,
            error.strerror,
        )


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
