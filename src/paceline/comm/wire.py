"""Vectors in fewer bytes: formats to send them in, and feedback of the rounding errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from paceline.core.chunks import Span, chunks
from paceline.core.vectors import Vector, aligned_zeros

Bytes = npt.NDArray[np.uint8]
Code = tuple[Vector, ...]
"""Views of the encoded bytes of one piece of a vector, in the types of the format."""

BLOCK = 1024
"""Elements that share a scale, in int8."""
_CHUNK = 64 * BLOCK  # a few arrays of this size stay in a core's cache
_LARGEST_HALF = 65504.0
_SMALLEST_NORMAL_HALF = 2.0**-14
_BITS_OF_ONE_HALF = 126 << 23
_BFLOAT16_NAN = 0x7FC0
_SMALLEST = np.finfo(np.float32).tiny  # below it a scale loses bits, and its inverse overflows


class Codec(ABC):
    """Encodes and decodes vectors of float32 or float64 in one format.

    It works in pieces that fit into the cache and has its own scratch memory: one codec per thread.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.scratch: Vector = np.empty(_CHUNK, dtype)
        """Memory for one decoded piece."""
        self._work: Vector = np.empty(_CHUNK, np.float32)
        self._narrow: Vector = np.empty(_CHUNK, np.float32)

    @abstractmethod
    def nbytes(self, size: int) -> int:
        """Encoded size of a vector with this many elements."""

    @abstractmethod
    def pieces(self, data: Bytes, size: int) -> Iterator[tuple[Span, Code]]:
        """The pieces of a vector, each with views of its code in `data`."""

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
        """Write the encoded vector to the first bytes of `out`."""
        with _quietly():
            for piece, code in self.pieces(out, vector.size):
                self.write_any(vector[piece], code)

    def decode(self, data: Bytes, out: Vector) -> None:
        """Overwrite `out` with the vector encoded in `data`."""
        for piece, code in self.pieces(data, out.size):
            self.read(code, out[piece])

    def add(self, data: Bytes, out: Vector) -> None:
        """Add the vector encoded in `data` to `out`."""
        with _quietly():
            for piece, code in self.pieces(data, out.size):
                part = out[piece]
                decoded = self.scratch[: part.size]
                self.read(code, decoded)
                part += decoded


class _TwoBytes(Codec):
    """Common to the formats of 16 bits."""

    def nbytes(self, size: int) -> int:
        return 2 * size

    def pieces(self, data: Bytes, size: int) -> Iterator[tuple[Span, Code]]:
        codes = data[: 2 * size].view(np.uint16)
        for piece in _cut(size):
            yield piece, (codes[piece],)


class BFloat16(_TwoBytes):
    """The upper half of a float32, rounded to nearest, ties to even: same range, 8 bits precise."""

    def write(self, piece: Vector, code: Code) -> None:
        (codes,) = code
        bits, rounded = piece.view(np.uint32), self._work[: piece.size].view(np.uint32)
        _round_off(bits, 16, out=rounded)
        np.copyto(codes, rounded, casting="unsafe")
        if np.isnan(piece.max()):  # the carry may have turned it into a number
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
    """IEEE half precision; values that are too large become the largest number, not infinity.

    numpy converts one element at a time, and those below 2^-14, as gradients often are, 20 times
    slower than others. So we convert in whole passes: with bit operations to half, by table back.
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
        small += 0.5  # its last bit is worth as much as that of a half below 2^-14
        steps = small.view(np.int32)
        steps -= _BITS_OF_ONE_HALF
        bits, halves = sizes.view(np.int32), self._large[: piece.size]
        _round_off(bits, 13, out=halves, plus=-(112 << 23))  # exponents start 112 lower
        np.maximum(halves, steps, out=halves)  # outside of its range each is the smaller one
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
    """Integers from -127 to 127, times a scale for each block of 1024 elements.

    All scales (float32) come first, then the integers. A block with a value that is not finite has
    NaN as its scale, so all of it decodes to NaN.
    """

    def nbytes(self, size: int) -> int:
        return 4 * -(-size // BLOCK) + size

    def pieces(self, data: Bytes, size: int) -> Iterator[tuple[Span, Code]]:
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
        scales[~np.isfinite(scales)] = np.nan  # whatever the integers are, they decode to NaN
        np.copyto(codes.reshape(rows.shape), work, casting="unsafe")

    def read(self, code: Code, out: Vector) -> None:
        scales, codes = code
        np.copyto(out, codes)
        rows = out.reshape(scales.size, -1)
        rows *= scales[:, None]


_CODECS: dict[str, type[Codec]] = {"bfloat16": BFloat16, "float16": Float16, "int8": Int8}


def make_codec(wire: str, dtype: npt.DTypeLike) -> Codec | None:
    """The codec of a format, for vectors of this type; None for float32, which needs none.

    >>> codec, data, back = make_codec("int8", np.float32), np.empty(7, np.uint8), np.empty(3)
    >>> codec.encode(np.array([0.0, -2.0, 254.0], np.float32), data)
    >>> codec.decode(data, back)
    >>> back
    array([  0.,  -2., 254.])
    """
    return None if wire == "float32" else _CODECS[wire](dtype)


class ErrorFeedback:
    """Keeps what rounding lost and adds it to the next message.

    With e the error, and C what a message decodes to:  send C(x + e),  e <- x + e - C(x + e),
    so the sum of all messages differs from the sum of all vectors by at most one rounding.
    Seide et al. 2014, doi:10.21437/Interspeech.2014-274; Karimireddy et al. 2019, arXiv:1901.09847.
    """

    def __init__(self, codec: Codec, size: int, dtype: npt.DTypeLike) -> None:
        self._codec = codec
        self.error: Vector = aligned_zeros(size, dtype)
        """All its state, for checkpoints."""

    def encode(self, vector: Vector, out: Bytes, at: int = 0) -> None:
        """Encode a vector, or the part of one that begins at element `at`."""
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
                if not finite.all():  # it would spoil every later message
                    part[~finite] = 0


def _cut(size: int) -> Iterator[Span]:
    """Cut into pieces of whole blocks, and the remainder last."""
    whole = size - size % BLOCK
    yield from chunks(slice(0, whole), _CHUNK)
    if whole < size:
        yield slice(whole, size)


def _round_off(bits: Vector, low: int, out: Vector, plus: int = 0) -> None:
    """Drop the lowest bits of (bits + plus), rounded to nearest, ties to even."""
    np.right_shift(bits, low, out=out)
    out &= 1
    out += bits
    out += (1 << (low - 1)) - 1 + plus
    out >>= low


def _quietly() -> np.errstate:
    """Pass values that are not finite without a warning: numpy warned where they arose."""
    return np.errstate(over="ignore", invalid="ignore")
