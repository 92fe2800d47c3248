"""The files of a Data object as a source of samples."""

from __future__ import annotations

import atexit
import copy
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from paceline.comm import World
from paceline.comm.rank0 import on_rank0
from paceline.core.nests import leaves, map_leaves
from paceline.core.user_code import describe_failure
from paceline.data import Source, open_data
from paceline.data.files.blocks import WINDOW_BYTES, BlockCache, BlockSource
from paceline.data.files.keys import Keys
from paceline.data.files.reader import Column
from paceline.errors import ConfigError, DataError, PacelineError
from paceline.mpi_learn.data import Data, H5Data

_reading = Lock()
"""Your methods need not be thread-safe: one thread feeds training, another validation."""


def open_files(world: World, data: Data, files: Sequence[Any] | str, part: str) -> Source | str:
    """What the Trainer reads samples from: HDF5 files directly, others through the Data object.

    Rank 0 inspects the files, and sends the others what it found.
    """
    if not _is_plain_hdf5(data):
        if isinstance(files, str):
            raise ConfigError(
                f"the {part} files are {files!r}, expected a list of names: {type(data).__name__} "
                "loads files, and only H5Data reads lists of them"
            )
        counted = on_rank0(world, lambda: DataSource(data, files, part).counted)
        return DataSource(data, files, part, counted)
    assert isinstance(data, H5Data)
    if isinstance(files, str):
        return files
    if data.caching_directory:
        return _write_list(files)
    return data.open(files, on_rank0(world, lambda: data.open(files).contents))


def file_settings(data: Data, files: Sequence[Any] | str) -> dict[str, Any]:
    """The settings for files that Paceline opens by name."""
    cache = data.caching_directory
    if not _is_plain_hdf5(data):
        if cache:
            raise ConfigError(
                f"cache is {cache!r}: copies are made of files that H5Data reads, and "
                f"{type(data).__name__} loads its own; omit it, or copy them in load_data"
            )
        return {}
    assert isinstance(data, H5Data)
    keys = {"keys": data.keys} if cache or isinstance(files, str) else {}
    return keys | ({"cache_dir": cache} if cache else {})


def count_samples(world: World, data: Data, opened: Source | str) -> int:
    """The samples of what `open_files` returned."""
    if not isinstance(opened, str):
        return len(opened)
    assert isinstance(data, H5Data)
    keys = data.keys

    def count() -> int:
        source: Any = open_data(opened, part="train", keys=keys)
        return len(source)

    return on_rank0(world, count)


def _is_plain_hdf5(data: Data) -> bool:
    """Whether reading the files directly would bypass no overridden method."""
    kind = type(data)
    if not isinstance(data, H5Data):
        return False
    return kind.load_data is H5Data.load_data and kind.generate_data is Data.generate_data


def _write_list(names: Sequence[Any]) -> str:
    """A list of these files, for the cache, which takes names."""
    with NamedTemporaryFile("w", suffix=".list", prefix="paceline-", delete=False) as file:
        file.writelines(f"{Path(name).absolute()}\n" for name in names)
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return file.name


class Counted(NamedTuple):
    """What the files of a Data object hold: samples of each, bytes of the largest, its arrays."""

    lengths: list[int]
    largest_bytes: int
    keys: Keys
    columns: tuple[Column, ...]


class DataSource(BlockSource):
    """Any samples of any file that the Data object can load, one whole file at a time.

    Every file is loaded once at the start, to count its samples, unless another rank has `counted`
    them. After that the most recently used are kept in memory.
    """

    def __init__(
        self, data: Data, names: Sequence[Any], part: str, counted: Counted | None = None
    ) -> None:
        self.name = f"{type(data).__name__} ({part}: {len(names)} files)"
        self._data = data
        self._names: list[Any] = list(names) or [None]
        self.keys, self.columns = Keys(None), ()
        self.counted = self._count() if counted is None else counted
        self.keys, self.columns = self.counted.keys, self.counted.columns
        self._lay_out(self.counted.lengths, None)
        if not len(self):
            raise DataError(f"{self.name} holds no samples; expected at least 1")
        self._cache = BlockCache(WINDOW_BYTES + 2 * self.counted.largest_bytes)

    def _count(self) -> Counted:
        lengths, largest_bytes = [], 1
        for name in self._names:
            arrays = self._load(name)
            lengths.append(len(arrays[0]) if arrays else 0)
            largest_bytes = max(largest_bytes, sum(array.nbytes for array in arrays))
        return Counted(lengths, largest_bytes, self.keys, self.columns)

    def _read(self, number: int, rows: np.ndarray) -> list[np.ndarray]:
        return [array[rows] for array in self._file(number)]

    def _file(self, number: int) -> list[np.ndarray]:
        return self._cache.get(number, lambda: self._load_again(number))

    def _load_again(self, number: int) -> list[np.ndarray]:
        name, (first, last) = self._names[number], self._edges[number : number + 2].tolist()
        arrays = self._load(name)
        samples = len(arrays[0]) if arrays else 0
        if samples != last - first:
            raise DataError(
                f"{_show(name)} gave {samples} samples, and {last - first} when it was first read; "
                "the same number is needed each time"
            )
        return arrays

    def _load(self, name: Any) -> list[np.ndarray]:
        """The arrays of a file, inputs first; they must be like those of the first file."""
        with _reading:
            try:
                inputs, targets = _load_file(self._data, name)
                arrays = [np.asarray(leaf) for part in (inputs, targets) for leaf in leaves(part)]
            except PacelineError:
                raise
            except Exception as error:
                raise DataError(
                    f"{_show(name)} cannot be loaded: {describe_failure(error)}"
                ) from error
        if not arrays:
            return []
        if not self.columns:
            self.keys = Keys(map_leaves(lambda _: "", inputs), map_leaves(lambda _: "", targets))
            self.columns = _columns_of(arrays)
        self._check(name, arrays)
        return arrays

    def _check(self, name: Any, arrays: list[np.ndarray]) -> None:
        found = _columns_of(arrays)
        lengths = {len(array) for array in arrays}
        if found != self.columns:
            raise DataError(
                f"{_show(name)} gave samples of {_describe(found)}, and {_show(self._names[0])} of "
                f"{_describe(self.columns)}; all files must have the same arrays"
            )
        if len(lengths) > 1:
            raise DataError(
                f"{_show(name)} gave arrays of {' and '.join(map(str, sorted(lengths)))} samples; "
                "all must have the same number"
            )


def _load_file(data: Data, name: Any) -> tuple[Any, Any]:
    """(X, Y) of one file, from `load_data`, or from the batches of `generate_data`; lists of one
    array are that array."""
    if type(data).generate_data is Data.generate_data:
        inputs, targets = data.load_data(name)
        return _unwrap(inputs), _unwrap(targets)
    alone = copy.copy(data)  # with its own file names
    alone.set_file_names([] if name is None else [name])
    batches = [(_unwrap(x), _unwrap(y)) for x, y in alone.generate_data()]
    if not batches:
        return (), ()
    inputs, targets = (_join([batch[part] for batch in batches]) for part in (0, 1))
    return inputs, targets


def _unwrap(value: Any) -> Any:
    """A list of one array is that array; a list of more is a tuple of inputs."""
    if isinstance(value, list | tuple):
        return _unwrap(value[0]) if len(value) == 1 else tuple(_unwrap(item) for item in value)
    return value


def _join(parts: list[Any]) -> Any:
    if isinstance(parts[0], tuple):
        return tuple(_join(list(column)) for column in zip(*parts, strict=True))
    return np.concatenate(parts)


def _show(name: Any) -> str:
    return "generate_data" if name is None else str(name)


def _columns_of(arrays: list[np.ndarray]) -> tuple[Column, ...]:
    return tuple(Column("", array.shape[1:], array.dtype) for array in arrays)


def _describe(columns: Sequence[Column]) -> str:
    return ", ".join(f"{column.dtype} {column.shape}" for column in columns)
