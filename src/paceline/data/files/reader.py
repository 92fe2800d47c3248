"""A file of samples, opened: what it holds, and how it is read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paceline.core.user_code import describe_failure
from paceline.data.files.keys import Keys
from paceline.data.number_types import LONG_DOUBLES, NO_LONG_DOUBLES, NUMBERS
from paceline.errors import DataError, PacelineError

BLOCK_BYTES = 1_000_000
"""What is worth one read, where the file itself does not say."""


@dataclass(frozen=True)
class Column:
    """One array of a file, without its leading axis: one sample's part of it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def sample_bytes(self) -> int:
        """Of one sample."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {self.shape}"


@dataclass(frozen=True)
class Contents:
    """What a file holds. One rank looks; the others use its findings, and need not open a file
    before they read it."""

    samples: int
    keys: Keys
    columns: tuple[Column, ...]
    edges: np.ndarray | None
    index: object
    """What the reader had to scan the file for; None where a header says it all."""
    checks: list[tuple[int, int]]
    """Size and checksum of some blocks, of each file."""


class Reader(Protocol):
    """An open file. Several threads may read at once."""

    @property
    def samples(self) -> int: ...

    @property
    def keys(self) -> Keys:
        """The names that were found, arranged as inputs and targets."""
        ...

    @property
    def columns(self) -> tuple[Column, ...]:
        """One for each name, inputs first; may be unknown for a file without samples."""
        ...

    @property
    def edges(self) -> np.ndarray | None:
        """Where blocks begin that are best read whole, and where the last one ends. None: any
        samples can be read alone at no extra cost."""
        ...

    @property
    def index(self) -> object:
        """Plain values that spare the next reader of this file from scanning it, or None."""
        ...

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """These samples of each column; with edges, always those of one block."""
        ...

    def close(self) -> None: ...


OpenFile = Callable[[Path, Keys | None, Any], Reader]
"""Opens a file: which names are wanted, and the index if another reader has made it."""


def cut_evenly(samples: int, rows: int) -> np.ndarray:
    """Edges of blocks of so many rows; the last may be smaller.

    >>> cut_evenly(10, 4).tolist()
    [0, 4, 8, 10]
    """
    return np.append(np.arange(0, samples, rows), samples)


def check_numbers(dtype: np.dtype, name: str, path: Path) -> np.dtype:
    """The type in this machine's byte order; refuse what is not a number."""
    if dtype.kind not in NUMBERS:
        raise DataError(f"{name} in {path} holds values of type {dtype}, expected numbers")
    if dtype.char in LONG_DOUBLES:
        raise DataError(f"{name} in {path} holds values of type {dtype}, {NO_LONG_DOUBLES}")
    return dtype.newbyteorder("=")


@contextmanager
def blamed_on(path: Path) -> Iterator[None]:
    """Libraries raise anything at all on a damaged file; whatever it is, name the file."""
    try:
        yield
    except PacelineError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path} is gone; bring it back, or list other files") from error
    except PermissionError as error:
        raise DataError(f"{path} may not be read by this user; change its permissions") from error
    except MemoryError as error:
        raise DataError(f"{path} does not fit into memory; write it in smaller pieces") from error
    except Exception as error:
        raise DataError(
            f"{path} cannot be read, it may be truncated or damaged ({describe_failure(error)}); "
            "write it again"
        ) from error


def need(extra: str, library: str, error: ImportError) -> DataError:
    """The error for a library that is not installed."""
    return DataError(
        f"reading these files needs {library}, which cannot be imported ({error}); "
        f"pip install 'paceline[{extra}]'"
    )
