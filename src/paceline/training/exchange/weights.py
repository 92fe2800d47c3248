"""The exchange of rules that average weights: after a step, now and then."""

from __future__ import annotations

from time import monotonic
from typing import Any

from paceline.comm import World
from paceline.observe import Stopwatch
from paceline.rules import Average
from paceline.training.exchange.gradients import GradientExchange
from paceline.training.exchange.message import Meeting, Message, Part


class WeightExchange:
    """Averages the weights of all replicas when the rule's period is over.

    A rank that has no further batch in the epoch meets at once, and again until no rank has one: so
    ranks may take different numbers of steps, and all leave the epoch with the same weights.
    """

    def __init__(self, world: World, replica: Any, rule: Average, number: int = 0) -> None:
        self._world, self._replica, self._rule = world, replica, rule
        self._message = Message(world, replica.layout, number) if world.size > 1 else None
        self._gradients = GradientExchange(world, replica, rule, number)
        self._steps_taken = 0
        self._begin_period()

    @property
    def bytes_sent(self) -> int:
        return self._gradients.bytes_sent + (self._message.bytes_sent if self._message else 0)

    def before_step(self, part: Part, watch: Stopwatch) -> Meeting | None:
        """Average gradients while that phase lasts."""
        if self._steps_taken < self._rule.start_after:
            return self._gradients.before_step(part, watch)
        return None

    def after_step(self, part: Part, watch: Stopwatch) -> Meeting | None:
        """Meet if it is time to, or if this rank has nothing else to do."""
        self._steps_taken += 1
        if self._steps_taken <= self._rule.start_after:
            self._begin_period()
            return None
        self._steps += 1
        self._samples += part.samples
        self._weight += part.weight
        seconds = monotonic() - self._began
        if part.more and not self._rule.period.is_over(self._steps, seconds):
            return None
        return self._meet(part.more, part.stop, watch)

    def end_epoch(self, watch: Stopwatch) -> None:
        """Meet at the end of a user's epoch, whether the period is over or not."""
        if self._steps_taken >= self._rule.start_after:
            self._meet(more=True, stop=False, watch=watch)

    def _meet(self, more: bool, stop: bool, watch: Stopwatch) -> Meeting:
        part = Part(self._samples, self._weight, more, stop)
        if self._message is None:
            meeting = Meeting(int(part.samples), part.weight, more, stop)
        else:
            replica = self._replica.parameters()
            self._rule.contribute(replica, part.weight, out=self._message.vector)
            meeting = self._message.travel(part, watch)
            if meeting.weight:
                self._rule.merge(self._message.vector, meeting.weight, out=replica)
                self._replica.accept_parameters()
            watch.lap("communication")
        if not self._rule.keep_momentum:
            self._replica.reset_optimizer()
        self._begin_period()
        return meeting

    def _begin_period(self) -> None:
        self._steps, self._samples, self._weight = 0, 0.0, 0.0
        self._began = monotonic()
