"""Columns of tables as arrays, and Parquet files, read a group of rows at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from paceline.data.files.keys import Keys, list_names, missing_names
from paceline.data.files.reader import Column, check_numbers, need
from paceline.errors import DataError

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Matrix:
    """Columns of numbers, side by side in one array of float32."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return list_names(self.names)


def choose_columns(names: list[str], keys: Keys | None, path: Path) -> Keys:
    """The keys that were set, where a list of names is one matrix.

    Without them the last column is the target, and the others together are the inputs.

    >>> choose_columns(["a", "b", "c"], None, Path("t.csv"))
    Keys(inputs=Matrix(names=('a', 'b')), targets='c')
    """
    if keys is None:
        if len(names) < 2:
            raise DataError(
                f"{path} has the columns: {list_names(names)}; expected inputs, and the target as "
                "the last one. Set data.keys to [NAME, null] if there is no target"
            )
        keys = Keys(tuple(names[:-1]), names[-1])
    keys = Keys(_as_matrices(keys.inputs), _as_matrices(keys.targets))
    missing = [name for name in columns_of(keys) if name not in names]
    if missing:
        raise missing_names(missing, names, path, "column")
    return keys


def columns_of(keys: Keys) -> list[str]:
    """Every column that the keys name, once."""
    return list(dict.fromkeys(name for leaf in keys.names() for name in _names(leaf)))


def gather(table: pyarrow.Table | pyarrow.RecordBatch, keys: Keys, path: Path) -> list[np.ndarray]:
    """The arrays of these rows, one for each name or matrix."""
    columns = {name: _as_array(table.column(name), name, path) for name in columns_of(keys)}
    return [
        _join([columns[name] for name in leaf.names], leaf, path)
        if isinstance(leaf, Matrix)
        else columns[leaf]
        for leaf in keys.names()
    ]


def describe(
    table: pyarrow.Table | pyarrow.RecordBatch, keys: Keys, path: Path
) -> tuple[Column, ...]:
    """Shape and type of a sample in each array, from some rows of the table."""
    arrays = gather(table, keys, path)
    return tuple(
        Column(str(leaf), array.shape[1:], array.dtype)
        for leaf, array in zip(keys.names(), arrays, strict=True)
    )


class ParquetFile:
    """Columns of one Parquet file; a row group is a block."""

    index = None

    def __init__(self, path: Path, keys: Keys | None = None, index: None = None) -> None:
        self._path = path
        self._lock = Lock()
        self._file = import_arrow("parquet").ParquetFile(path)
        self.keys = choose_columns(self._file.schema_arrow.names, keys, path)
        metadata = self._file.metadata
        self.samples = metadata.num_rows
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self.edges = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        self.columns: tuple[Column, ...] = ()
        if self.samples:  # only the rows tell how long lists are
            used = columns_of(self.keys)
            first = next(self._file.iter_batches(1, columns=used, use_threads=False))
            self.columns = describe(first, self.keys, path)

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """The row group of these samples."""
        group = int(np.searchsorted(self.edges, rows[0], side="right")) - 1
        used = columns_of(self.keys)
        with self._lock:
            table = self._file.read_row_group(group, columns=used, use_threads=False)
        return gather(table, self.keys, self._path)

    def close(self) -> None:
        """Nothing can be read afterwards."""
        self._file.close()


def import_arrow(module: str) -> ModuleType:
    """A module of pyarrow."""
    try:
        return import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise need("tables", "pyarrow", error) from error


def _as_matrices(part: object) -> object:
    if isinstance(part, Mapping):
        return {name: _as_matrices(item) for name, item in part.items()}
    return Matrix(part) if isinstance(part, tuple) else part


def _names(leaf: str | Matrix) -> tuple[str, ...]:
    return leaf.names if isinstance(leaf, Matrix) else (leaf,)


def _as_array(column: pyarrow.Array | pyarrow.ChunkedArray, name: str, path: Path) -> np.ndarray:
    """A column of numbers, or of lists of them that are all of one length."""
    if column.null_count:
        raise DataError(
            f"column {name} of {path} has {column.null_count} missing values among its rows; "
            "fill them, or omit these rows"
        )
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if not hasattr(column, "flatten") or not str(column.type).startswith(
        ("list", "fixed_size_list", "large_list")
    ):
        array: np.ndarray = np.asarray(column.to_numpy(zero_copy_only=False))
        return array.astype(_check_type(array, column, name, path), copy=False)
    inner = _as_array(column.flatten(), name, path)
    if len(column) and len(inner) % len(column):
        raise _uneven(name, path)
    lengths = column.value_lengths().to_numpy(zero_copy_only=False) if len(column) else None
    if lengths is not None and (lengths != lengths[0]).any():
        raise _uneven(name, path)
    length = 0 if lengths is None else int(lengths[0])
    return inner.reshape(len(column), length, *inner.shape[1:])


def _check_type(array: np.ndarray, column: pyarrow.Array, name: str, path: Path) -> np.dtype:
    if array.dtype.kind == "O":
        raise DataError(
            f"column {name} of {path} holds {column.type}, expected numbers; write classes as "
            "numbers from 0, or omit the column with data.keys"
        )
    return check_numbers(array.dtype, f"column {name}", path)


def _uneven(name: str, path: Path) -> DataError:
    return DataError(f"column {name} of {path} has lists of different lengths; pad them to one")


def _join(columns: list[np.ndarray], leaf: Matrix, path: Path) -> np.ndarray:
    for name, column in zip(leaf.names, columns, strict=True):
        if column.ndim != 1:
            raise DataError(
                f"column {name} of {path} holds lists, and cannot be joined with others in one "
                "array; name it alone in data.keys, or with others as {NAME: column, ...}"
            )
    return np.stack(columns, axis=1).astype(np.float32, copy=False)
