"""Arrays in .npy and .npz files. Whatever is wrong with a file is a DataError that names it."""

import math
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy_format

from paceline.core.user_code import describe_failure
from paceline.data.files.file_guard import FileGuard
from paceline.data.files.keys import Keys, choose_keys, missing_names
from paceline.data.files.paths import files_of, find_file
from paceline.data.files.reader import Column, check_numbers
from paceline.data.number_types import LONG_DOUBLES, NO_LONG_DOUBLES, NUMBERS
from paceline.errors import DataError, PacelineError

NPY_MAGIC, ZIP_MAGIC = b"\x93NUMPY", b"PK"
_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype]]] = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}


def map_npy(name: str, may_be_empty: bool = False) -> tuple[np.ndarray, FileGuard]:
    """The array of a .npy file, memory-mapped."""
    path = find_file(name)
    with _blamed_on(path, "np.save"):
        file = FileGuard(path)
        with path.open("rb") as content:
            if _starts_with(content, ZIP_MAGIC):
                raise DataError(f"{path} is an archive of arrays; rename it to .npz")
            _check_magic(content, str(path), path.suffix, "np.save")
            shape, dtype = _read_header(content, str(path))
            _check_room(str(path), shape, dtype, file.size_bytes - content.tell(), "np.save")
            _check_samples(str(path), shape, may_be_empty)
        if 0 in shape:  # an empty file cannot be mapped
            return np.empty(shape, dtype), file
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not file.is_at(path):
            raise DataError(f"{path} was replaced while it was opened; start again")
        file.check()
    return array, file


def read_npz(
    name: str, keys: Keys | None, may_be_empty: bool = False
) -> tuple[list[np.ndarray], Keys, FileGuard]:
    """The arrays of these names in a .npz file, in memory, and the names that were found."""
    path = find_file(name)
    with _blamed_on(path, "np.savez"):
        file = FileGuard(path)
        with path.open("rb") as content:
            if _starts_with(content, NPY_MAGIC):
                raise DataError(f"{path} holds a single array, not an archive; rename it to .npy")
            _check_magic(content, str(path), path.suffix, "np.savez", ZIP_MAGIC)
            with zipfile.ZipFile(content) as archive:
                keys, members = _find_members(archive, path, keys)
                _check_memory(members, path)
                arrays = [
                    _read_member(archive, info, f"{key} in {path}", may_be_empty)
                    for key, info in members
                ]
        file.check()
        file.copied = True
    return arrays, keys, file


def look_into_npz(
    name: str, keys: Keys | None
) -> tuple[list[tuple[tuple[int, ...], np.dtype]], Keys]:
    """Shape and type of the arrays of these names in a .npz file, without unpacking them."""
    path = find_file(name)
    found = []
    with _blamed_on(path, "np.savez"), zipfile.ZipFile(path) as archive:
        keys, members = _find_members(archive, path, keys)
        for key, info in members:
            with archive.open(info) as content:
                _check_magic(content, f"{key} in {path}", "array", "np.savez")
                found.append(_read_header(content, f"{key} in {path}"))
    return found, keys


@contextmanager
def _blamed_on(path: Path, writer: str) -> Iterator[None]:
    """A damaged file may make numpy and zipfile raise anything at all."""
    try:
        yield
    except PacelineError:
        raise
    except PermissionError as error:
        raise DataError(f"{path} may not be read by this user; change its permissions") from error
    except MemoryError as error:
        raise DataError(f"{path} does not fit into memory; {_SAVE_AS_NPY}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {describe_failure(error)}") from error
    except Exception as error:
        raise _damaged(str(path), describe_failure(error), writer) from error


_SAVE_AS_NPY = "save it as X.npy and Y.npy, which are read piece by piece"


def _damaged(origin: str, what: str, writer: str) -> DataError:
    return DataError(f"{origin} is truncated or damaged ({what}); write it again with {writer}")


def _starts_with(content: IO[bytes], magic: bytes) -> bool:
    start = content.read(len(magic))
    content.seek(0)
    return start == magic


def _check_magic(
    content: IO[bytes], origin: str, kind: str, writer: str, magic: bytes = NPY_MAGIC
) -> None:
    if not _starts_with(content, magic):
        raise DataError(f"{origin} is not a {kind} file; write it with {writer}")


def _read_header(content: IO[bytes], origin: str) -> tuple[tuple[int, ...], np.dtype]:
    version = npy_format.read_magic(content)
    if version not in _HEADERS:  # 3.0 is for records with Unicode field names
        raise DataError(f"{origin} is in .npy format {version}, expected (1, 0) or (2, 0)")
    shape, _, dtype = _HEADERS[version](content)
    if dtype.hasobject:
        raise DataError(
            f"{origin} holds Python objects, which are not read since they could run code; "
            "save arrays of numbers, all samples of one shape"
        )
    if dtype.kind not in NUMBERS:
        raise DataError(f"{origin} holds values of type {dtype}, expected numbers")
    if dtype.char in LONG_DOUBLES:
        raise DataError(f"{origin} holds values of type {dtype}, {NO_LONG_DOUBLES}")
    return shape, dtype


def _check_room(
    origin: str, shape: tuple[int, ...], dtype: np.dtype, room_bytes: int, writer: str
) -> None:
    """Refuse a header that claims more than the file holds, before allocating as much."""
    wanted_bytes = math.prod(shape) * dtype.itemsize
    if any(side < 0 for side in shape) or wanted_bytes > room_bytes:
        what = f"its header claims {dtype} of shape {shape}, {wanted_bytes} bytes, "
        raise _damaged(origin, f"{what}and {room_bytes} follow", writer)


def _check_samples(origin: str, shape: tuple[int, ...], may_be_empty: bool) -> None:
    """One file of several may be empty."""
    if shape and shape[0] == 0:
        if may_be_empty:
            return
        raise DataError(f"{origin} holds no samples: its shape is {shape}; expected at least 1")
    if 0 in shape:
        raise DataError(f"{origin} has samples of size 0: its shape is {shape}; expected numbers")


def _find_members(
    archive: zipfile.ZipFile, path: Path, keys: Keys | None
) -> tuple[Keys, list[tuple[str, zipfile.ZipInfo]]]:
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    keys = choose_keys(members, keys, path, "array")
    missing = [name for name in keys.names() if name not in members]
    if missing:
        raise missing_names(missing, members, path, "array")
    return keys, [(name, members[name]) for name in keys.names()]


def _check_memory(members: list[tuple[str, zipfile.ZipInfo]], path: Path) -> None:
    unpacked_bytes = sum(info.file_size for info in dict(members).values())
    if unpacked_bytes > _memory_bytes():
        raise DataError(
            f"{path} unpacks to {unpacked_bytes} bytes, and this machine has {_memory_bytes()} "
            f"bytes of memory; {_SAVE_AS_NPY}"
        )


def _read_member(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, origin: str, may_be_empty: bool
) -> np.ndarray:
    with archive.open(info) as content:
        _check_magic(content, origin, "array", "np.savez")
        shape, dtype = _read_header(content, origin)
        _check_room(origin, shape, dtype, info.file_size - content.tell(), "np.savez")
        _check_samples(origin, shape, may_be_empty)
        content.seek(0)
        array: np.ndarray = npy_format.read_array(content, allow_pickle=False)
        if content.read(1):
            raise _damaged(
                origin, f"more follows the {array.nbytes} bytes of its array", "np.savez"
            )
    return array


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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
        """All of the arrays: the source keeps them."""
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
        counts = " and of ".join(map(str, lengths))
        raise DataError(f"{path} holds arrays of {counts} samples; all must have the same number")
    columns = tuple(
        Column(str(name), shape[1:], check_numbers(dtype, str(name), path))
        for name, (shape, dtype) in zip(keys.names(), found, strict=True)
    )
    return lengths[0], columns
