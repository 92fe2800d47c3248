"""Files of one data set, opened when they are read, with a limit on how many stay open."""

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from paceline.data.files.file_guard import FileGuard
from paceline.data.files.keys import Keys
from paceline.data.files.paths import files_of, find_file
from paceline.data.files.reader import Contents, OpenFile, Reader, blamed_on
from paceline.errors import DataError

MOST_OPEN = 32


class _Opened:
    def __init__(self, reader: Reader, files: list[FileGuard]) -> None:
        self.reader = reader
        self.files = files
        self.users = 0

    def check(self) -> None:
        for file in self.files:
            file.check()


class OpenFiles:
    """Readers by path; the least recently used are closed first.

    A file that is opened again must be unchanged. A forked process opens its own.
    """

    def __init__(
        self, open_file: OpenFile, keys: Keys | None, known: dict[Path, Contents] | None = None
    ) -> None:
        self.keys = keys
        self.known = known or {}
        """Contents of the files that were inspected."""
        self._open_file = open_file
        self._lock = Lock()
        self._opened: OrderedDict[Path, _Opened] = OrderedDict()
        self._process = os.getpid()

    def __reduce__(self) -> tuple[object, ...]:
        return OpenFiles, (self._open_file, self.keys, self.known)

    @contextmanager
    def use(self, path: Path) -> Iterator[Reader]:
        """The file's reader, which stays open meanwhile; errors name the path."""
        with blamed_on(path):
            opened = self._enter(path)
            try:
                opened.check()
                yield opened.reader
                opened.check()
            finally:
                with self._lock:
                    opened.users -= 1

    def look(self, path: Path) -> Contents:
        """What the file holds; when it is opened again, it must hold the same."""
        with self.use(path) as reader:
            checks = [file.content for file in self._opened[path].files]
            self.known[path] = Contents(
                reader.samples, reader.keys, reader.columns, reader.edges, reader.index, checks
            )
        return self.known[path]

    def _enter(self, path: Path) -> _Opened:
        with self._lock:
            if self._process != os.getpid():
                self._opened.clear()
                self._process = os.getpid()
            opened = self._opened.pop(path, None) or self._open(path)
            self._opened[path] = opened
            opened.users += 1
            self._close_some()
            return opened

    def _open(self, path: Path) -> _Opened:
        known = self.known.get(path)
        names = files_of(path)
        if known is None:
            names = [find_file(str(name)) for name in names]
        files = [FileGuard(name) for name in names]
        if known is not None and known.checks != [file.content for file in files]:
            raise DataError(
                f"{path} changed while it was trained on, or is another file than on rank 0; start "
                "again, and write new data to another file while a run reads this"
            )
        return _Opened(self._open_file(path, self.keys, known and known.index), files)

    def _close_some(self) -> None:
        idle = [path for path, opened in self._opened.items() if not opened.users]
        for path in idle[: max(0, len(self._opened) - MOST_OPEN)]:
            self._opened.pop(path).reader.close()
