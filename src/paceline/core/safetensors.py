"""Files of safetensors, written as a stream: no array is copied whole.

The library's own writer copies every array before version 0.8, and computes no checksum on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.chunks import chunks
from paceline.core.files import render_json

Array = npt.NDArray[np.generic]

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
"""The types of numpy, and what safetensors calls them."""


CHUNK_BYTES = 1 << 20

MAX_HEADER_BYTES = 100_000_000  # what readers of safetensors accept


class Tensor(NamedTuple):
    """An array to be written: the format's name of its type, its shape, and its values."""

    dtype: str
    shape: Sequence[int]
    values: Array
    """An array of numpy, or the bytes of one whose type numpy does not have."""

    @classmethod
    def of(cls, array: Array) -> Tensor:
        return cls(DTYPES[array.dtype.name], array.shape, array)


def safetensors_chunks(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file; at most one array is copied at a time, and only if it is
    not contiguous."""
    yield render_header(tensors, metadata)
    for tensor in tensors.values():
        array = tensor.values
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        octets = plain.reshape(-1).view(np.uint8).data
        for piece in chunks(slice(0, len(octets)), CHUNK_BYTES):
            yield octets[piece]


def render_header(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The head of a safetensors file: its length, then JSON that says where each array lies."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.values.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (begin, end)}
        begin = end
    text = render_json(header)
    text += b" " * (-len(text) % 8)  # so that the arrays are aligned
    assert len(text) <= MAX_HEADER_BYTES, f"{len(tensors)} arrays in one file are too many"
    return len(text).to_bytes(8, "little") + text
