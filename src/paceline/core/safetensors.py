"""Files of safetensors, written as a stream: no array is copied whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.files import render

Array = npt.NDArray[Any]

DTYPES = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}
"""The arrays that a tree may hold, and what safetensors calls them."""


CHUNK_BYTES = 1 << 20

MAX_HEADER_BYTES = 100_000_000  # what readers of safetensors accept


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
