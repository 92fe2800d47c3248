"""HDF5 files, read in blocks of whole chunks."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.regular_files import check_regular
from paceline.data.files.keys import Keys, choose_keys, missing_names
from paceline.data.files.reader import BLOCK_BYTES, Column, check_numbers, cut_evenly, need
from paceline.errors import DataError

if TYPE_CHECKING:
    import h5py

CHUNK_CACHE_BYTES = 2**20
"""HDF5's own, for each dataset of an open file; it helps only with chunks that span blocks."""

_MOST_SAMPLES = 2**32
_MOST_BYTES = 2**42
"""What a dataset may declare. A damaged header may declare anything, and samples that were never
written take no space on disk, but do in memory."""
_AT_ONCE = 16
"""Samples that must fit into memory together."""


class Hdf5File:
    """Datasets of one file, by their names; a group stands for its datasets, sorted by name."""

    index = None

    def __init__(self, path: Path, keys: Keys | None = None, index: None = None) -> None:
        try:
            import h5py
        except ImportError as error:
            raise need("hdf5", "h5py", error) from error
        # Ranks only read: locks would exclude other programs, and some file systems have none.
        self._file = h5py.File(path, "r", locking=False, rdcc_nbytes=CHUNK_CACHE_BYTES)
        try:
            asked = choose_keys(self._file.keys(), keys, path, "dataset")
            self._check_there(asked, path)
            self.keys = asked.expand(lambda name: _datasets_in(self._file[name], name, path))
            for name in self.keys.names():  # also those that a group has
                _check_links(self._file, name, path)
            self._datasets = [self._file[name] for name in self.keys.names()]
            self.columns = tuple(_describe(dataset, path) for dataset in self._datasets)
            self.samples = _agree_on_length(self._datasets, path)
        except BaseException:
            self._file.close()
            raise
        self.edges = cut_evenly(self.samples, _rows_per_block(self._datasets, self.columns))

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """These samples, which are consecutive, of each dataset."""
        first, last = int(rows[0]), int(rows[-1]) + 1
        return [dataset[first:last] for dataset in self._datasets]

    def close(self) -> None:
        """Nothing can be read afterwards."""
        self._file.close()

    def _check_there(self, keys: Keys, path: Path) -> None:
        for name in keys.names():
            _check_links(self._file, name, path)
        missing = [name for name in keys.names() if name not in self._file]
        if missing:
            found: list[str] = []
            self._file.visit(found.append)
            raise missing_names(missing, found, path, "dataset")


def _datasets_in(found: h5py.Dataset | h5py.Group, name: str, path: Path) -> str | tuple[str, ...]:
    """The name, or the names of what the group of this name holds."""
    if not hasattr(found, "keys"):
        return name
    names = tuple(f"{name}/{key}" for key in sorted(found))
    inner = [name for name in names if hasattr(found[name.rsplit("/", 1)[1]], "keys")]
    if inner or not names:
        what = f"holds the group {inner[0]}" if inner else "is empty"
        raise DataError(
            f"{name} in {path} is a group that {what}, expected datasets; "
            "name those that are meant in data.keys"
        )
    return names


def _describe(dataset: h5py.Dataset, path: Path) -> Column:
    name = dataset.name.lstrip("/")
    if not hasattr(dataset, "dtype") or not dataset.shape:
        raise DataError(
            f"{name} in {path} is not an array with samples along its first axis; "
            "name another in data.keys"
        )
    dtype = check_numbers(dataset.dtype, name, path)
    _check_size(dataset.shape, dtype, name, path)
    _check_parts(dataset, name, path)
    return Column(name, tuple(dataset.shape[1:]), dtype)


def _check_size(shape: tuple[int, ...], dtype: np.dtype, name: str, path: Path) -> None:
    sample_bytes = math.prod(shape[1:]) * dtype.itemsize
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    few = shape[0] <= _MOST_SAMPLES and shape[0] * sample_bytes <= _MOST_BYTES
    if not few or sample_bytes * min(shape[0], _AT_ONCE) > memory_bytes:
        raise DataError(
            f"{name} in {path} declares {shape[0]:,} samples of {sample_bytes:,} bytes, which is "
            "too much for one file on this machine; it may be damaged: write it again, or in parts"
        )


def _check_parts(dataset: h5py.Dataset, name: str, path: Path) -> None:
    """HDF5 reads zeros where a part of a virtual dataset is missing."""
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        part = source.file_name
        if part != "." and "%" not in part:
            _check_part(part, name, path)
    for part, _, _ in dataset.external or ():
        _check_part(part, name, path)


def _check_links(file: h5py.File, name: str, path: Path) -> None:
    """A name, or a group in its path, may be a link into another file."""
    steps = [step for step in name.split("/") if step]
    for last in range(1, len(steps) + 1):
        link = file.get("/".join(steps[:last]), getlink=True)
        if hasattr(link, "filename"):
            _check_part(link.filename, name, path)


def _check_part(part: str, name: str, path: Path) -> None:
    """Another file that HDF5 opens by itself."""
    what = "is missing"
    for place in (path.parent / part, Path(part)):
        try:
            check_regular(place)
        except FileNotFoundError:
            continue
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
        else:
            return
    raise DataError(
        f"{name} in {path} is made of other files, and {part} {what}; bring it back, or write the "
        "data into one file"
    )


def _agree_on_length(datasets: list[h5py.Dataset], path: Path) -> int:
    lengths = {dataset.name.lstrip("/"): len(dataset) for dataset in datasets}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(
            f"the datasets of {path} differ in their number of samples: {counts}; write it again"
        )
    return next(iter(lengths.values()))


def _rows_per_block(datasets: list[h5py.Dataset], columns: tuple[Column, ...]) -> int:
    """Whole chunks of the largest dataset: HDF5 always unpacks a whole chunk."""
    wanted = max(1, BLOCK_BYTES // max(1, sum(column.sample_bytes for column in columns)))
    sizes = [column.sample_bytes for column in columns]
    chunks = datasets[sizes.index(max(sizes))].chunks
    return max(1, wanted // chunks[0]) * chunks[0] if chunks else wanted
