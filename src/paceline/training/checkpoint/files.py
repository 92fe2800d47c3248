"""The single files of a checkpoint: written through to the disk, and checked when read."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from paceline.regular_files import open_regular
from paceline.training.checkpoint.tree import DTYPES, Array, Tree

CHUNK_BYTES = 1 << 20
MAX_HEADER_BYTES = 100_000_000  # what readers of safetensors accept


def render(document: Any) -> bytes:
    """Strict JSON."""
    return json.dumps(document, allow_nan=False).encode()


def render_header(arrays: Mapping[str, Array]) -> bytes:
    """The head of a safetensors file: its length, then JSON that tells where each array lies."""
    entries, begin = {}, 0
    for key, array in arrays.items():
        end = begin + array.nbytes
        entries[key] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": array.shape,
            "data_offsets": (begin, end),
        }
        begin = end
    text = render(entries)
    text += b" " * (-len(text) % 8)  # so that the arrays are aligned
    assert len(text) <= MAX_HEADER_BYTES, f"{len(arrays)} arrays in one part are too many"
    return len(text).to_bytes(8, "little") + text


def safetensors_chunks(header: bytes, arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file; no more than one array is copied at a time."""
    yield header
    for array in arrays.values():
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        octets = plain.reshape(-1).view(np.uint8).data
        for begin in range(0, len(octets), CHUNK_BYTES):
            yield octets[begin : begin + CHUNK_BYTES]


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> Tree:
    """Write under a temporary name, through to the disk; returns its length and checksum."""
    temporary = path.with_name(f".{path.name}.partial")
    size, checksum = 0, 0
    with temporary.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            size += len(chunk)
            checksum = zlib.crc32(chunk, checksum)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return {"bytes": size, "crc32": f"{checksum:08x}"}


def sync_folder(path: Path) -> None:
    """Names, too, reach the disk late."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)


def parse(path: Path) -> Any:
    """The JSON in a file, or a ValueError."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        with open_regular(path) as file:
            return json.loads(file.read(), parse_constant=refuse)
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from error


def check_length(path: Path, record: Tree) -> None:
    """A ValueError unless the file is as long as was noted when it was written."""
    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    if (found := path.stat().st_size) != record["bytes"]:
        raise ValueError(f"{path.name} has {found} bytes, expected {record['bytes']}")


def verify(path: Path, record: Tree) -> None:
    """A ValueError unless the file has the length and the checksum that were noted."""
    check_length(path, record)
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    if (found := f"{checksum:08x}") != record["crc32"]:
        raise ValueError(f"{path.name} has checksum {found}, expected {record['crc32']}")


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a safetensors file, in memory of their own; or a ValueError."""
    try:
        arrays = load_file(path)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # the parser has many, and all of them blame the file
        raise ValueError(f"{path.name} is not a safetensors file: {error}") from error
    return {key: _own(array) for key, array in arrays.items()}


def _own(array: Array) -> Array:
    return array if array.flags.writeable else array.copy()
