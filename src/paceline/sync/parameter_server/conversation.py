"""A worker's buffers for its conversations with the servers, and the one that is under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.rules import PushTerms
from paceline.sync.parameter_server.ledger import WorkerReport
from paceline.sync.parameter_server.packets import READ, Packet
from paceline.sync.parameter_server.worker_port import WorkerPort


class Packets:
    """One buffer each way for each server."""

    def __init__(self, rooms: Sequence[int], more: int, workers: int) -> None:
        """For payloads of so many bytes; behind a request so many `more` numbers, behind a reply
        one for each worker."""
        self.requests = [Packet(room, more) for room in rooms]
        self.replies = [Packet(room, workers) for room in rooms]
        self.kind, self.terms = READ, PushTerms()
        """What the vectors in them answer, once they do."""


@dataclass
class Conversation:
    """A report or an exchange that is under way."""

    report: WorkerReport
    terms: PushTerms
    port: WorkerPort | None
    packets: Packets
    is_filled: bool = False
    """Whether the push lies in the packets."""
