"""Files of numpy arrays as parts of a data set: .npy memory-mapped, .npz unpacked when read."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paceline.data.files.keys import Keys
from paceline.data.files.open_files import files_of
from paceline.data.files.reader import Column, check_numbers
from paceline.data.formats.numpy_files import look_into_npz, map_npy, read_npz
from paceline.errors import DataError

Found = Sequence[tuple[tuple[int, ...], np.dtype]]


class NpyFiles:
    """`x.npy`, or the pair `x.npy,y.npy`: any samples, straight from the files."""

    edges = None
    index = None

    def __init__(self, path: Path, keys: Keys | None = None, index: None = None) -> None:
        names = [str(file) for file in files_of(path)]
        if len(names) > 2:
            raise DataError(f"{path} names {len(names)} files; give X.npy or X.npy,Y.npy")
        self._arrays = [map_npy(name, may_be_empty=True)[0] for name in names]
        self.keys = Keys("x", "y" if len(names) > 1 else None)
        found = [(array.shape, array.dtype) for array in self._arrays]
        self.samples, self.columns = _describe(self.keys, found, path)

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """These samples of each array."""
        return [np.asarray(array)[rows] for array in self._arrays]

    def close(self) -> None:
        """Unmap the files."""
        self._arrays = []


class NpzFile:
    """Arrays of one archive. It can only be unpacked whole, so it is one block."""

    index = None

    def __init__(self, path: Path, keys: Keys | None = None, index: None = None) -> None:
        self._path = path
        found, self.keys = look_into_npz(str(path), keys)
        self.samples, self.columns = _describe(self.keys, found, path)
        self.edges = np.array([0, self.samples])

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """All of the arrays: they are kept by the source, not here."""
        return read_npz(str(self._path), self.keys)[0]

    def close(self) -> None:
        """Nothing is held open."""


def _describe(keys: Keys, found: Found, path: Path) -> tuple[int, tuple[Column, ...]]:
    if any(not shape for shape, _ in found):
        raise DataError(
            f"{path} holds a single number; expected arrays whose first axis is samples"
        )
    lengths = [shape[0] for shape, _ in found]
    if len(set(lengths)) > 1:
        told = " and of ".join(map(str, lengths))
        raise DataError(f"{path} holds arrays of {told} samples; all must have as many")
    columns = tuple(
        Column(str(name), shape[1:], check_numbers(dtype, str(name), path))
        for name, (shape, dtype) in zip(keys.names(), found, strict=True)
    )
    return lengths[0], columns
