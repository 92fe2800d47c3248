"""Many files as one source: any samples of any of them, read in blocks, with bounded memory."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from paceline.data.files.blocks import BlockCache, BlockSource
from paceline.data.files.keys import Keys
from paceline.data.files.open_files import OpenFiles
from paceline.data.files.paths import files_of, find_file
from paceline.data.files.reader import Column, Contents, OpenFile
from paceline.errors import DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Block:
    """Samples that are read together: their file, and where they are in it."""

    path: Path
    first: int
    last: int
    kept: bool


class MultiFileSource(BlockSource):
    """The samples of all files, one file after the other; files may differ in length.

    `buffer` is how many samples are shuffled at a time, of files that are best read in blocks; by
    default as many as fit in WINDOW_BYTES (see blocks). As much is kept in memory. `contents` is
    what another rank found in these files; then none is opened before it is read.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        open_file: OpenFile,
        *,
        name: str,
        keys: Keys | None = None,
        buffer: int | None = None,
        contents: Sequence[Contents] | None = None,
    ) -> None:
        self.name = name
        self.columns = ()
        self._files = OpenFiles(open_file, keys)
        self._blocks: list[_Block] = []
        self.in_blocks = False
        if contents is None:
            self.contents = [self._add(path, self._files.look(path)) for path in paths]
        else:
            self._take_over(paths, contents)
        if not self._blocks:
            raise DataError(f"{name} holds no samples; expected at least 1")
        lengths = [block.last - block.first for block in self._blocks]
        self._lay_out(lengths, buffer)
        most = min(len(self), self.window + max(lengths))  # a window ends with a whole block
        self._cache = BlockCache((most + max(lengths)) * self.sample_bytes)

    def _read(self, number: int, rows: np.ndarray) -> list[np.ndarray]:
        block = self._blocks[number]
        if block.kept:
            whole = self._cache.get(
                number, lambda: self._read_rows(block, np.arange(block.first, block.last))
            )
            return [array[rows] for array in whole]
        return self._read_rows(block, rows + block.first)

    def _read_rows(self, block: _Block, rows: np.ndarray) -> list[np.ndarray]:
        with self._files.use(block.path) as reader:
            arrays = reader.read(rows)
            for array, column in zip(arrays, self.columns, strict=True):
                if array.shape != (len(rows), *column.shape):
                    raise DataError(
                        f"{block.path} gave {column.name} of shape {array.shape}, expected "
                        f"{(len(rows), *column.shape)}; write it again"
                    )
        return arrays

    def _take_over(self, paths: Sequence[Path], contents: Sequence[Contents]) -> None:
        """Use what another rank found in the files, if they are here with the same sizes."""
        if len(paths) != len(contents):
            raise DataError(
                f"{self.name} names {len(paths)} files here, and {len(contents)} on rank 0; every "
                "rank must see the same files"
            )
        self.contents = list(contents)
        for path, found in zip(paths, contents, strict=True):
            here = [find_file(str(file)).stat().st_size for file in files_of(path)]
            there = [size_bytes for size_bytes, _ in found.checks]
            if here != there:
                sizes = [" and ".join(map(str, each)) for each in (here, there)]
                raise DataError(
                    f"{path} has {sizes[0]} bytes here, and {sizes[1]} on rank 0; every rank must "
                    "see the same files"
                )
            self._files.known[path] = self._add(path, found)

    def _add(self, path: Path, found: Contents) -> Contents:
        """Append the file's blocks; nothing is read."""
        if not found.samples:
            log.warning("%s holds no samples; the others are used", path)
            return found
        self._files.keys = self.keys = found.keys
        self._check_like_others(path, found.columns)
        kept = found.edges is not None
        cuts = [0, found.samples] if found.edges is None else found.edges.tolist()
        self.in_blocks |= kept
        self._blocks += [
            _Block(path, first, last, kept) for first, last in pairwise(cuts) if first < last
        ]
        return found

    def _check_like_others(self, path: Path, columns: tuple[Column, ...]) -> None:
        if not self.columns:
            self.columns, self._first = columns, path
        if columns != self.columns:
            ours, theirs = (", ".join(map(str, found)) for found in (columns, self.columns))
            raise DataError(
                f"{path} has {ours}, and {self._first} has {theirs}; all files of a data set must "
                "have the same arrays, with samples of one shape and type"
            )
