"""A worker's side of an exchange with the centre: what it gives, and what it does with the answer.

The centre asks for pieces of the vector and answers by pieces: a chunk in the node's memory, a
server's shard. Each is a piece of the same mathematics.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from paceline.core.vectors import Vector
from paceline.rules import CentreRule, PushTerms, State


class WorkerPort(Protocol):
    """What the centre asks of a worker."""

    def write_push(self, piece: slice, terms: PushTerms, out: Vector) -> None:
        """Write what it pushes."""

    def accept_reply(self, piece: slice, reply: Vector) -> None:
        """Take the answer to a pull."""

    def exchange_in_place(
        self, piece: slice, centre: Vector, terms: PushTerms, out: Vector
    ) -> bool:
        """Give, let the centre move and take, all at once if there is such a way."""


class InPlacePort:
    """A worker that waits for its exchange: pieces go straight from and to its replica."""

    def __init__(self, rule: CentreRule, weights: Vector, state: State) -> None:
        self._rule, self._weights, self._state = rule, weights, state
        self.at = weights
        """The replica as it was when it asked."""

    def write_push(self, piece: slice, terms: PushTerms, out: Vector) -> None:
        self._rule.make_push(self._weights[piece], _cut(self._state, piece), terms, out)

    def accept_reply(self, piece: slice, reply: Vector) -> None:
        weights = self._weights[piece]
        self._rule.apply_reply(reply, weights, weights, _cut(self._state, piece))

    def exchange_in_place(
        self, piece: slice, centre: Vector, terms: PushTerms, out: Vector
    ) -> bool:
        return self._rule.exchange_in_place(self._weights[piece], centre, terms, out)


class BufferedPort:
    """A worker that goes on computing: what it sends and gets is kept until it comes back to it."""

    def __init__(self, rule: CentreRule, weights: Vector, state: State) -> None:
        self._rule, self._weights, self._state = rule, weights, state
        self._sent, self._reply = np.empty_like(weights), np.empty_like(weights)
        self.at = np.empty_like(weights)
        self._answered = False

    def pack(self, push: bool, terms: PushTerms) -> None:
        """Keep the replica as it is now, and what is pushed of it."""
        self.at[:] = self._weights
        self._answered = False
        if push:
            self._rule.make_push(self._weights, self._state, terms, self._sent)

    def write_push(self, piece: slice, terms: PushTerms, out: Vector) -> None:
        out[:] = self._sent[piece]

    def accept_reply(self, piece: slice, reply: Vector) -> None:
        self._reply[piece] = reply
        self._answered = True

    def exchange_in_place(
        self, piece: slice, centre: Vector, terms: PushTerms, out: Vector
    ) -> bool:
        return False  # the replica is not to be touched now

    def unpack(self) -> None:
        """Let the answer, if there is one, move the replica, which has gone on meanwhile."""
        if self._answered:
            self._rule.apply_reply(self._reply, self.at, self._weights, self._state)


class DistanceProbe:
    """Measures, around another side, how far the replica was from the centre."""

    def __init__(self, side: InPlacePort | BufferedPort, rule: CentreRule) -> None:
        self._side, self._rule = side, rule
        self._squared, self._force, self._answered = 0.0, 1.0, False

    def write_push(self, piece: slice, terms: PushTerms, out: Vector) -> None:
        self._force = terms.force
        self._side.write_push(piece, terms, out)

    def accept_reply(self, piece: slice, reply: Vector) -> None:
        if self._rule.reply_kind == "move":
            self._add(reply, self._force)
        else:
            self._add(reply - self._side.at[piece])
        self._side.accept_reply(piece, reply)

    def exchange_in_place(
        self, piece: slice, centre: Vector, terms: PushTerms, out: Vector
    ) -> bool:
        traded = self._side.exchange_in_place(piece, centre, terms, out)
        if traded:
            self._add(out, terms.force)
        return traded

    def _add(self, apart: Vector, force: float = 1.0) -> None:
        self._squared += float(np.dot(apart, apart)) / force**2
        self._answered = True

    def distance(self) -> float | None:
        """None if nothing came back."""
        return float(np.sqrt(self._squared)) if self._answered else None


def _cut(state: dict[str, Any], piece: slice) -> State:
    return {name: vector[piece] for name, vector in state.items()}
