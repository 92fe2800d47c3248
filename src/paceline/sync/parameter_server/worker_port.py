"""A worker's port to the centre: what it pushes, and what it does with the reply.

The centre asks for pieces of the vector and replies by pieces: a chunk in the node's memory, a
server's shard. Each is a piece of the same mathematics.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from paceline.core.chunks import Span
from paceline.core.vectors import Vector
from paceline.rules import CentreRule, PushTerms, State


class WorkerPort(Protocol):
    """What the centre asks of a worker."""

    def write_push(self, piece: Span, terms: PushTerms, out: Vector) -> None:
        """Write what it pushes."""

    def accept_reply(self, piece: Span, reply: Vector) -> None:
        """Take the answer to a pull."""

    def exchange_in_place(self, piece: Span, centre: Vector, terms: PushTerms, out: Vector) -> bool:
        """Give, let the centre move and take, all at once if there is such a way."""


class InPlacePort:
    """A worker that waits for its exchange: pieces go straight from and to its replica."""

    def __init__(self, rule: CentreRule, weights: Vector, state: State) -> None:
        self._rule, self._weights, self._state = rule, weights, state
        self.before = weights
        """The replica as it was when it asked."""

    def write_push(self, piece: Span, terms: PushTerms, out: Vector) -> None:
        self._rule.make_push(self._weights[piece], _cut(self._state, piece), terms, out)

    def accept_reply(self, piece: Span, reply: Vector) -> None:
        weights = self._weights[piece]
        self._rule.apply_reply(reply, weights, weights, _cut(self._state, piece))

    def exchange_in_place(self, piece: Span, centre: Vector, terms: PushTerms, out: Vector) -> bool:
        return self._rule.exchange_in_place(self._weights[piece], centre, terms, out)


class BufferedPort:
    """A worker that goes on computing: what it sends and gets is kept until it comes back to it."""

    def __init__(self, rule: CentreRule, weights: Vector, state: State) -> None:
        self._rule, self._weights, self._state = rule, weights, state
        self._sent, self._reply = np.empty_like(weights), np.empty_like(weights)
        self.before = np.empty_like(weights)
        self._answered = False

    def pack(self, push: bool, terms: PushTerms) -> None:
        """Keep the replica as it is now, and what is pushed of it."""
        self.before[:] = self._weights
        self._answered = False
        if push:
            self._rule.make_push(self._weights, self._state, terms, self._sent)

    def write_push(self, piece: Span, terms: PushTerms, out: Vector) -> None:
        out[:] = self._sent[piece]

    def accept_reply(self, piece: Span, reply: Vector) -> None:
        self._reply[piece] = reply
        self._answered = True

    def exchange_in_place(self, piece: Span, centre: Vector, terms: PushTerms, out: Vector) -> bool:
        return False  # the replica is not to be touched now

    def unpack(self) -> None:
        """Let the answer, if there is one, move the replica, which has gone on meanwhile."""
        if self._answered:
            self._rule.apply_reply(self._reply, self.before, self._weights, self._state)


class DistanceProbe:
    """Measures, around another port, how far the replica was from the centre."""

    def __init__(self, port: InPlacePort | BufferedPort, rule: CentreRule) -> None:
        self._port, self._rule, self._terms = port, rule, PushTerms()
        self._squared, self._answered = 0.0, False

    def write_push(self, piece: Span, terms: PushTerms, out: Vector) -> None:
        self._terms = terms
        self._port.write_push(piece, terms, out)

    def accept_reply(self, piece: Span, reply: Vector) -> None:
        self._add(reply, piece, self._terms)
        self._port.accept_reply(piece, reply)

    def exchange_in_place(self, piece: Span, centre: Vector, terms: PushTerms, out: Vector) -> bool:
        done = self._port.exchange_in_place(piece, centre, terms, out)
        if done:
            self._add(out, piece, terms)
        return done

    def _add(self, reply: Vector, piece: Span, terms: PushTerms) -> None:
        apart = self._rule.distance(reply, self._port.before[piece], terms)
        self._squared += float(np.dot(apart, apart))
        self._answered = True

    def distance(self) -> float | None:
        """None if nothing came back."""
        return float(np.sqrt(self._squared)) if self._answered else None


def _cut(state: State, piece: Span) -> State:
    return {name: vector[piece] for name, vector in state.items()}
