"""Vectors in fewer bytes: how they are rounded on their way, and how what is lost comes after."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.vectors import Vector, aligned_zeros

Bytes = npt.NDArray[np.uint8]
Code = tuple[npt.NDArray[Any], ...]
"""Views of the bytes of one piece of a vector, of the types that the format has there."""

BLOCK = 1024
"""Elements that have a scale in common, in int8."""
_CHUNK = 64 * BLOCK  # a few arrays of this size stay in a core's cache
_LARGEST_HALF = 65504.0
_SMALLEST_NORMAL_HALF = 2.0**-14
_BITS_OF_ONE_HALF = 126 << 23
_BFLOAT16_NAN = 0x7FC0
_SMALLEST = np.finfo(np.float32).tiny  # below it a scale loses bits, and its inverse overflows


class Codec(ABC):
    """Writes vectors of float32 or float64 in one of the formats, and reads them.

    It works in pieces that fit into the cache, with memory of its own: one codec, one thread.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.scratch: Vector = np.empty(_CHUNK, dtype)
        """Room for what one piece decodes to."""
        self._work: Vector = np.empty(_CHUNK, np.float32)
        self._narrow: Vector = np.empty(_CHUNK, np.float32)

    @abstractmethod
    def nbytes(self, size: int) -> int:
        """Bytes for a vector of so many elements."""

    @abstractmethod
    def pieces(self, data: Bytes, size: int) -> Iterator[tuple[slice, Code]]:
        """The pieces of a vector, each with the place of its code in `data`."""

    @abstractmethod
    def write(self, piece: Vector, code: Code) -> None:
        """Encode one piece of float32."""

    @abstractmethod
    def read(self, code: Code, out: Vector) -> None:
        """Decode one piece."""

    def write_any(self, piece: Vector, code: Code) -> None:
        """Encode one piece of either type."""
        if piece.dtype != np.float32:
            narrow = self._narrow[: piece.size]
            np.copyto(narrow, piece, casting="same_kind")
            piece = narrow
        self.write(piece, code)

    def encode(self, vector: Vector, out: Bytes) -> None:
        """Write the vector's code to the first bytes of `out`."""
        with _quietly():
            for piece, code in self.pieces(out, vector.size):
                self.write_any(vector[piece], code)

    def decode(self, data: Bytes, out: Vector) -> None:
        """Overwrite `out` by the vector that `data` stands for."""
        for piece, code in self.pieces(data, out.size):
            self.read(code, out[piece])

    def add(self, data: Bytes, out: Vector) -> None:
        """Add the vector that `data` stands for to `out`."""
        with _quietly():
            for piece, code in self.pieces(data, out.size):
                part = out[piece]
                decoded = self.scratch[: part.size]
                self.read(code, decoded)
                part += decoded


class _TwoBytes(Codec):
    """What the formats of 16 bits have in common."""

    def nbytes(self, size: int) -> int:
        return 2 * size

    def pieces(self, data: Bytes, size: int) -> Iterator[tuple[slice, Code]]:
        codes = data[: 2 * size].view(np.uint16)
        for piece in _cut(size):
            yield piece, (codes[piece],)


class BFloat16(_TwoBytes):
    """The upper half of a float32, rounded to nearest, ties to even: its range, 8 bits of it."""

    def write(self, piece: Vector, code: Code) -> None:
        (codes,) = code
        bits, rounded = piece.view(np.uint32), self._work[: piece.size].view(np.uint32)
        _round_off(bits, 16, out=rounded)
        np.copyto(codes, rounded, casting="unsafe")
        if np.isnan(piece.max()):  # the carry may have made a number of it
            codes[np.isnan(piece)] = _BFLOAT16_NAN

    def read(self, code: Code, out: Vector) -> None:
        (codes,) = code
        wide = out if out.dtype == np.float32 else self._work[: out.size]
        bits = wide.view(np.uint32)
        np.copyto(bits, codes)
        bits <<= 16
        if wide is not out:
            np.copyto(out, wide)


class Float16(_TwoBytes):
    """IEEE half precision; what is too large becomes the largest number, not infinity.

    numpy converts an element at a time, and those below 2^-14, as gradients often are, 20 times
    slower than others. So this is done here, in whole passes: by bits to halves, by table back.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        super().__init__(dtype)
        self._small: Vector = np.empty(_CHUNK, np.float32)
        self._large: Vector = np.empty(_CHUNK, np.int32)
        self._values: Vector = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype("f4")

    def write(self, piece: Vector, code: Code) -> None:
        (codes,) = code
        sizes = np.abs(piece, out=self._work[: piece.size])
        if not sizes.max() <= _LARGEST_HALF:
            self._write_extremes(piece, codes)
            return
        small = np.minimum(sizes, _SMALLEST_NORMAL_HALF, out=self._small[: piece.size])
        small += 0.5  # its last bit is worth as much as the last one of a half below 2^-14
        steps = small.view(np.int32)
        steps -= _BITS_OF_ONE_HALF
        bits, halves = sizes.view(np.int32), self._large[: piece.size]
        _round_off(bits, 13, out=halves, plus=-(112 << 23))  # exponents start 112 lower
        np.maximum(halves, steps, out=halves)  # each is the smaller one outside of its range
        np.right_shift(piece.view(np.int32), 16, out=bits)
        bits &= 0x8000
        halves |= bits
        np.copyto(codes, halves, casting="unsafe")

    def _write_extremes(self, piece: Vector, codes: npt.NDArray[np.uint16]) -> None:
        clipped = np.clip(piece, -_LARGEST_HALF, _LARGEST_HALF, out=self._work[: piece.size])
        np.copyto(clipped, piece, where=np.isinf(piece))
        np.copyto(codes.view(np.float16), clipped, casting="same_kind")

    def read(self, code: Code, out: Vector) -> None:
        (codes,) = code
        wide = out if out.dtype == np.float32 else self._work[: out.size]
        np.take(self._values, codes, out=wide, mode="clip")  # no code is out of range
        if wide is not out:
            np.copyto(out, wide)


class Int8(Codec):
    """Whole numbers from -127 to 127, times a scale for each block of 1024 elements.

    All scales (float32) come first, then the numbers. A block with a number that is not finite has
    NaN as its scale, so all of it decodes to NaN.
    """

    def nbytes(self, size: int) -> int:
        return 4 * -(-size // BLOCK) + size

    def pieces(self, data: Bytes, size: int) -> Iterator[tuple[slice, Code]]:
        begin = 4 * -(-size // BLOCK)
        scales, codes = data[:begin].view(np.float32), data[begin : begin + size].view(np.int8)
        for piece in _cut(size):
            blocks = slice(piece.start // BLOCK, -(-piece.stop // BLOCK))
            yield piece, (scales[blocks], codes[piece])

    def write(self, piece: Vector, code: Code) -> None:
        scales, codes = code
        rows = piece.reshape(scales.size, -1)
        work = self._work[: piece.size].reshape(rows.shape)
        np.max(np.abs(rows, out=work), axis=1, out=scales)
        scales /= 127
        np.maximum(scales, _SMALLEST, out=scales, where=scales > 0)
        factors = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
        np.rint(np.multiply(rows, factors[:, None], out=work), out=work)
        scales[~np.isfinite(scales)] = np.nan  # whatever numbers stand there, NaN comes of them
        np.copyto(codes.reshape(rows.shape), work, casting="unsafe")

    def read(self, code: Code, out: Vector) -> None:
        scales, codes = code
        np.copyto(out, codes)
        rows = out.reshape(scales.size, -1)
        rows *= scales[:, None]


_CODECS: dict[str, type[Codec]] = {"bfloat16": BFloat16, "float16": Float16, "int8": Int8}


def make_codec(wire: str, dtype: npt.DTypeLike) -> Codec | None:
    """The codec of a format, for vectors of this type; None for float32, sent as it is.

    >>> codec, data, back = make_codec("int8", np.float32), np.empty(7, np.uint8), np.empty(3)
    >>> codec.encode(np.array([0.0, -2.0, 254.0], np.float32), data)
    >>> codec.decode(data, back)
    >>> back
    array([  0.,  -2., 254.])
    """
    return None if wire == "float32" else _CODECS[wire](dtype)


class ErrorFeedback:
    """Remembers what rounding lost and adds it to the next message.

    With e the error, and C what a message decodes to:  send C(x + e),  e <- x + e - C(x + e),
    so the sum of all messages is never further from the sum of all vectors than one rounding.
    Seide et al. 2014, doi:10.21437/Interspeech.2014-274; Karimireddy et al. 2019, arXiv:1901.09847.
    """

    def __init__(self, codec: Codec, size: int, dtype: npt.DTypeLike) -> None:
        self._codec = codec
        self.error: Vector = aligned_zeros(size, dtype)
        """Its whole state, to be saved with a checkpoint."""

    def encode(self, vector: Vector, out: Bytes, at: int = 0) -> None:
        """Encode a vector, or the part of it that begins at element `at`."""
        codec, error = self._codec, self.error[at : at + vector.size]
        with _quietly():
            for piece, code in codec.pieces(out, vector.size):
                part = error[piece]
                part += vector[piece]
                codec.write_any(part, code)
                decoded = codec.scratch[: part.size]
                codec.read(code, decoded)
                part -= decoded
                finite = np.isfinite(part)
                if not finite.all():  # it would be in every later message
                    part[~finite] = 0


def _cut(size: int) -> Iterator[slice]:
    """Pieces of whole blocks; what is left over comes last."""
    whole = size - size % BLOCK
    for first in range(0, whole, _CHUNK):
        yield slice(first, min(first + _CHUNK, whole))
    if whole < size:
        yield slice(whole, size)


def _round_off(bits: Vector, low: int, out: Vector, plus: int = 0) -> None:
    """Write (bits + plus) without their lowest ones, rounded to nearest, ties to even."""
    np.right_shift(bits, low, out=out)
    out &= 1
    out += bits
    out += (1 << (low - 1)) - 1 + plus
    out >>= low


def _quietly() -> np.errstate:
    """Numbers that are not finite travel on without a warning; who computed them has warned."""
    return np.errstate(over="ignore", invalid="ignore")
