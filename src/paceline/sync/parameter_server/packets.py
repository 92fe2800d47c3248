"""What travels between a worker and a rank that holds a piece of the centre: one flat buffer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.comm import Buffer
from paceline.core.vectors import Vector, aligned_zeros
from paceline.rules import PushTerms
from paceline.sync.parameter_server.ledger import LedgerReply, WorkerReport

REPORT, EXCHANGE, EXCHANGE_SHARD, READ, SAVE, SIGN_OFF = range(6)
"""Kinds of requests: to the ledger; to ledger and centre; to the centre alone; for a copy; to save;
the last one."""

_FIELDS = 24
_UNITS, _MORE = _FIELDS - 2, _FIELDS - 1
"""Where the head says how many units of eight bytes the payload has, and how many come behind."""


class Packet:
    """A head of a few numbers and room for a vector in any wire format, in one piece of memory."""

    def __init__(self, payload_bytes: int, more: int = 0) -> None:
        """With room for so many `more` numbers behind the payload."""
        units = _FIELDS + -(-payload_bytes // 8) + more
        # Eight bytes per element, so that MPI's 31-bit counts reach to 16 GB.
        self._all: Vector = aligned_zeros(units, np.float64)
        self._head = self._all[:_FIELDS]
        self.payload: Vector = self._all[_FIELDS:].view(np.uint8)

    @property
    def room(self) -> Buffer:
        """All of it, to receive into."""
        return self._all

    def filled(self, payload_bytes: int, more: Vector | None = None) -> Buffer:
        """The head and so much of the payload, to send; with `more` numbers behind it."""
        units, count = -(-payload_bytes // 8), 0 if more is None else more.size
        self._head[_UNITS], self._head[_MORE] = units, count
        end = _FIELDS + units
        if more is not None:
            self._all[end : end + count] = more
        return self._all[: end + count]

    def more(self) -> Vector:
        """A copy of the numbers that came behind the payload."""
        first, count = _FIELDS + int(self._head[_UNITS]), int(self._head[_MORE])
        return self._all[first : first + count].copy()

    def vector(self, size: int, dtype: npt.DTypeLike) -> Vector:
        """The payload as a vector that is sent as it is."""
        return self.payload[: size * np.dtype(dtype).itemsize].view(dtype)

    def ask(self, kind: int, report: WorkerReport, terms: PushTerms) -> None:
        """Write the head of a request."""
        self._head[: 1 + len(report) + len(terms)] = kind, *report, *terms

    def asked(self) -> tuple[int, WorkerReport, PushTerms]:
        """Read the head of a request."""
        kind, *fields = self._head.tolist()
        report, terms = fields[: len(WorkerReport._fields)], fields[len(WorkerReport._fields) :]
        return int(kind), WorkerReport(*report), PushTerms(*terms[: len(PushTerms._fields)])

    def answer(self, reply: LedgerReply) -> None:
        """Write the head of a reply."""
        self._head[: len(reply)] = reply

    def answered(self) -> LedgerReply:
        """Read the head of a reply."""
        samples, loss, stop, *counts, quit, scale, without_loss = self._head[
            : len(LedgerReply._fields)
        ].tolist()
        working, first, last, staleness, saves = map(int, counts)
        whole = (working, first, last, staleness, saves)
        return LedgerReply(samples, loss, stop > 0, *whole, quit > 0, scale, without_loss)

    def note(self, value: float) -> None:
        """Write a single number as the head."""
        self._head[0] = value

    def noted(self) -> float:
        """Read it."""
        return float(self._head[0])
