"""The files of a checkpoint: written with checksums, and checked when read."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path

from safetensors.numpy import load_file

from paceline.core.files import synced_draft
from paceline.core.regular_files import open_regular
from paceline.core.safetensors import CHUNK_BYTES, Array
from paceline.core.trees import Tree


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> Tree:
    """Write a file, whole or not at all, through to the disk; returns its length and checksum."""
    size, checksum = 0, 0
    with synced_draft(path) as file:
        for chunk in chunks:
            file.write(chunk)
            size += len(chunk)
            checksum = zlib.crc32(chunk, checksum)
    return {"bytes": size, "crc32": f"{checksum:08x}"}


def parse(path: Path) -> object:
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
    """Raise a ValueError unless the file has the length in its record."""
    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    if (found := path.stat().st_size) != record["bytes"]:
        raise ValueError(f"{path.name} has {found} bytes, expected {record['bytes']}")


def verify(path: Path, record: Tree) -> None:
    """Raise a ValueError unless the file has the length and the checksum in its record."""
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
    except Exception as error:  # the parser raises many kinds, all for a damaged file
        raise ValueError(f"{path.name} is not a safetensors file: {error}") from error
    return {key: _own(array) for key, array in arrays.items()}


def _own(array: Array) -> Array:
    return array if array.flags.writeable else array.copy()
