"""The exchange of rules that average gradients: before every step."""

from __future__ import annotations

from typing import Any

from paceline.comm import World
from paceline.comm.coded_sum import make_sums
from paceline.observe import Stopwatch
from paceline.rules import BSP
from paceline.training.exchange.message import Meeting, Message, Part
from paceline.vectors import Vector


class GradientExchange:
    """Averages the gradients of all replicas by the rule.

    The gradients lie in the message itself; its flags say which parameters got one. Alone, nothing
    is copied and nothing is sent.
    """

    free, works = False, True

    def __init__(self, world: World, replica: Any, rule: BSP, number: int = 0) -> None:
        self._replica, self._rule = replica, rule
        self._message: Message | None = None
        sums = make_sums(world, rule.wire, [replica.layout.size], replica.layout.dtype)
        self._sum = sums[0] if sums else None
        if world.size > 1:
            weights = replica.layout.empty_vector()
            self._message = Message(world, weights, len(replica.layout.entries), number)
            replica.rehome(weights, self._message.vector)

    @property
    def bytes_sent(self) -> int:
        return self._message.bytes_sent if self._message else 0

    def before_step(self, part: Part, watch: Stopwatch) -> Meeting | None:
        """Average the gradients that the replicas hold."""
        if self._message is None:
            return Meeting(int(part.samples), part.weight, part.more, part.stop)
        gradient, present = self._replica.collect_gradients()
        self._rule.contribute(gradient, part.weight, out=gradient)
        self._message.flags[:] = present
        meeting = self._message.travel(part, watch, coded=self._sum)
        self._rule.merge(gradient, meeting.weight, out=gradient)
        watch.lap("communication")
        self._replica.accept_gradients(self._message.flags)
        return meeting

    def after_step(self, part: Part, watch: Stopwatch) -> Meeting | None:
        """All is done before the step."""
        return None

    def end_epoch(self, watch: Stopwatch) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """Give the message's memory back."""
        if self._message is not None:
            self._message.close()

    def centre(self) -> Vector | None:
        """The replicas are always equal."""
        return None
