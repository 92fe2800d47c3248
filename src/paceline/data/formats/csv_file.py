"""CSV files: scanned once for where rows begin, then read a block of rows at a time."""

from __future__ import annotations

import codecs
import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.data.files.keys import Keys
from paceline.data.files.reader import BLOCK_BYTES, Column
from paceline.data.formats.tables import (
    Matrix,
    choose_columns,
    columns_of,
    describe,
    gather,
    import_arrow,
)
from paceline.errors import DataError

if TYPE_CHECKING:
    import pyarrow

LONGEST_LINE_BYTES = 64_000_000
NEWLINE, RETURN = 10, 13
Index = tuple[np.ndarray, np.ndarray]
"""Where in the file blocks of rows begin and end, and the numbers of these rows."""


class CsvFile:
    """Columns of one CSV file. A first line that holds a word gives their names, else they are f0,
    f1, ...; the first rows give the type of a column that is named alone."""

    def __init__(self, path: Path, keys: Keys | None = None, index: Index | None = None) -> None:
        self._path = path
        with path.open("rb") as file:
            first = file.readline(LONGEST_LINE_BYTES)
        self._names, begin = _read_names(first)
        self.keys = choose_columns(self._names, keys, path)
        self.index: Index = index_rows(path, begin) if index is None else index
        self._places, self.edges = self.index
        self.samples = int(self.edges[-1])
        self._types: dict[str, pyarrow.DataType] = {}
        self.columns: tuple[Column, ...] = ()
        if self.samples:
            self._types = self._choose_types(self._parse(0))
            self.columns = describe(self._parse(0), self.keys, path)

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """The block of these samples."""
        block = int(np.searchsorted(self.edges, rows[0], side="right")) - 1
        return gather(self._parse(block), self.keys, self._path)

    def close(self) -> None:
        """Nothing is held open."""

    def _parse(self, block: int) -> pyarrow.Table:
        begin, end = int(self._places[block]), int(self._places[block + 1])
        with self._path.open("rb") as file:
            file.seek(begin)
            content = file.read(end - begin)
        arrow = import_arrow("csv")
        return arrow.read_csv(
            io.BytesIO(content),
            read_options=arrow.ReadOptions(column_names=self._names, use_threads=False),
            parse_options=arrow.ParseOptions(newlines_in_values=False),
            convert_options=arrow.ConvertOptions(
                column_types=self._types, include_columns=columns_of(self.keys)
            ),
        )

    def _choose_types(self, table: pyarrow.Table) -> dict[str, pyarrow.DataType]:
        """In a matrix, a column that begins with whole numbers may have fractions later."""
        pyarrow = import_arrow("lib")
        types = {name: table.schema.field(name).type for name in table.schema.names}
        beside = [leaf.names for leaf in self.keys.names() if isinstance(leaf, Matrix)]
        return types | {name: pyarrow.float32() for names in beside for name in names}


def index_rows(path: Path, begin: int) -> Index:
    """Read the file once, and remember where blocks of rows are."""
    places, rows, held = [begin], [0], b""
    with path.open("rb") as file:
        file.seek(begin)
        while piece := file.read(BLOCK_BYTES):
            held += piece
            end = held.rfind(b"\n") + 1
            if end:
                places.append(places[-1] + end)
                rows.append(count_rows(held[:end]))
                held = held[end:]
            elif len(held) > LONGEST_LINE_BYTES:
                raise DataError(f"{path} has a line of more than {len(held)} bytes; is it CSV?")
    if held:
        places.append(places[-1] + len(held))
        rows.append(count_rows(held))
    return np.array(places), np.cumsum(rows)


def count_rows(content: bytes) -> int:
    r"""Lines that are not blank.

    >>> count_rows(b"1,2\n\n3,4\r\n\r\n5,6")
    3
    """
    letters = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(letters == NEWLINE)
    lengths = np.diff(ends, prepend=-1) - 1
    blank = (lengths == 0) | ((lengths == 1) & (letters[ends - 1] == RETURN))
    last = content[int(ends[-1]) + 1 :] if len(ends) else content
    return int(len(ends) - blank.sum()) + bool(last.strip(b"\r"))


def _read_names(first: bytes) -> tuple[list[str], int]:
    """Names of the columns, and where the rows begin."""
    mark = len(codecs.BOM_UTF8) if first.startswith(codecs.BOM_UTF8) else 0
    cells = [cell.strip() for cell in next(csv.reader([first[mark:].decode()]), [])]
    if cells and all(_is_number(cell) for cell in cells):
        return [f"f{number}" for number in range(len(cells))], mark
    return cells, len(first)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
