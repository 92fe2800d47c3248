"""How vectors travel to and from the centre in a wire format, so that rounding adds up to nothing.

What is exchanged again and again, weights and centre, goes as a difference from what the other
side has got so far: both keep that reference, so what rounding loses is part of the next
difference. Updates carry their rounding error over to the next one. The answer to an elastic push
needs neither: the centre moves by what the worker gets, bit for bit.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from paceline.comm.wire import Codec, ErrorFeedback
from paceline.core.vectors import Vector


class VectorCodec(Protocol):
    """One direction between two ranks; each end has its own."""

    def encode(self, vector: Vector, out: Vector) -> None:
        """Write the vector's bytes."""

    def decode(self, data: Vector, out: Vector) -> None:
        """Write the vector that the bytes stand for."""

    def recall(self, data: Vector, out: Vector) -> None:
        """Write what the last bytes stood for, at either end."""


class IdentityCodec:
    """The vector as it is."""

    def encode(self, vector: Vector, out: Vector) -> None:
        out.view(vector.dtype)[:] = vector

    def decode(self, data: Vector, out: Vector) -> None:
        out[:] = data.view(out.dtype)

    def recall(self, data: Vector, out: Vector) -> None:
        self.decode(data, out)


class DeltaCodec:
    """Differences from what the other end has got so far; both ends begin alike."""

    def __init__(self, codec: Codec, start: Vector) -> None:
        self._codec, self._got = codec, start.copy()
        self._part = np.empty_like(start)

    def encode(self, vector: Vector, out: Vector) -> None:
        np.subtract(vector, self._got, out=self._part)
        self._codec.encode(self._part, out)
        self._codec.decode(out, self._part)
        self._got += self._part

    def decode(self, data: Vector, out: Vector) -> None:
        self._codec.decode(data, self._part)
        self._got += self._part
        out[:] = self._got

    def recall(self, data: Vector, out: Vector) -> None:
        out[:] = self._got


class PlainCodec:
    """Each vector for itself: the receiver takes what rounding leaves of it."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def encode(self, vector: Vector, out: Vector) -> None:
        self._codec.encode(vector, out)

    def decode(self, data: Vector, out: Vector) -> None:
        self._codec.decode(data, out)

    def recall(self, data: Vector, out: Vector) -> None:
        self._codec.decode(data, out)


class FeedbackCodec:
    """Updates; the sender's rounding error goes with its next one."""

    def __init__(self, codec: Codec, like: Vector) -> None:
        self._codec, self._feedback = codec, ErrorFeedback(codec, like.size, like.dtype)
        self.error = self._feedback.error
        """What rounding has kept back so far."""

    def encode(self, vector: Vector, out: Vector) -> None:
        self._feedback.encode(vector, out)

    def decode(self, data: Vector, out: Vector) -> None:
        self._codec.decode(data, out)

    def recall(self, data: Vector, out: Vector) -> None:
        self._codec.decode(data, out)


class CodecPair:
    """The two directions between a worker and a server; `with_centre`: what replies hold."""

    def __init__(self, with_centre: bool, codec: Codec | None, start: Vector) -> None:
        self.push: VectorCodec
        self.pull: VectorCodec
        self.codec = codec
        self.nbytes = start.nbytes if codec is None else codec.nbytes(start.size)
        if codec is None:
            self.push = self.pull = IdentityCodec()
        elif not with_centre:
            self.push, self.pull = DeltaCodec(codec, start), PlainCodec(codec)
        else:
            self.push, self.pull = FeedbackCodec(codec, start), DeltaCodec(codec, start)
