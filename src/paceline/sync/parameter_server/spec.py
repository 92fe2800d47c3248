"""What a centre is made from, wherever it lies."""

from __future__ import annotations

from typing import NamedTuple

from paceline.comm.wire import Codec, make_codec
from paceline.core.vectors import Vector
from paceline.rules import CentreRule, State
from paceline.sync.saved import SavedCentre

_FIRST_TAG = 1000
_NUMBERS = 5000
_TAGS = 4
"""Exchanges of one program that are told apart; MPI promises tags up to 32767."""


class CentreSpec(NamedTuple):
    """The same on all ranks."""

    rule: CentreRule | None
    """None: only the ledger is kept."""
    wire: str
    exchange_id: int
    batches: int
    """To be granted to workers."""
    saved: SavedCentre | None
    most_held: int = 0
    """Batches that a worker may have in hand, or not yet given to the centre."""

    @property
    def tags(self) -> tuple[int, int, int]:
        """Of requests, replies and copies of the ledger."""
        requests, replies, _, copies = message_tags(self.exchange_id)
        return requests, replies, copies

    def staleness_weight(self, staleness: int) -> float:
        return 1.0 if self.rule is None else self.rule.staleness_weight(staleness)

    def init_state(self, start: Vector) -> State:
        """The optimizer's state for a piece of the centre."""
        if self.rule is None or not start.size:
            return {}
        return self.rule.init_centre(start.size, start.dtype)

    def codec(self, like: Vector) -> Codec | None:
        return make_codec(self.wire, like.dtype)

    @property
    def replies_with_centre(self) -> bool:
        return self.rule is not None and self.rule.reply_kind == "centre"

    @property
    def again(self) -> tuple[int, ...]:
        """Batches that the resumed run had granted, and nobody trained on."""
        return self.saved.again if self.saved is not None else ()


def message_tags(exchange_id: int) -> tuple[int, int, int, int]:
    """For an exchange: the tags of requests, replies, pushes to peers, and copies of the ledger."""
    first = _FIRST_TAG + _TAGS * (exchange_id % _NUMBERS)
    return first, first + 1, first + 2, first + 3
