"""The exchange of rules that average weights: after a step, now and then."""

from __future__ import annotations

from time import monotonic
from typing import Any

from paceline.comm import World
from paceline.comm.coded_sum import make_sums
from paceline.observe import Stopwatch
from paceline.rules import BSP, State, WeightRule
from paceline.training.exchange.gradients import GradientExchange
from paceline.training.exchange.message import Meeting, Message, Part
from paceline.vectors import Vector, cut


class WeightExchange:
    """Brings the weights of all replicas together when the rule's period is over.

    A rank that has no further batch in the epoch meets at once, and again until no rank has one: so
    ranks may take different numbers of steps, and all end the epoch together. The rule's state is
    made of the weights that the replicas have in common when they begin to train alone.
    """

    free, works = False, True

    def __init__(self, world: World, replica: Any, rule: WeightRule, number: int = 0) -> None:
        self._replica, self._rule, self._alone = replica, rule, world.size == 1
        self._plain = self._alone and rule.plain_alone
        self._gradients = (
            GradientExchange(world, replica, BSP(wire=rule.wire), number)
            if rule.start_after
            else None
        )
        weights = replica.parameters()
        self._slices = cut(weights.size, rule.fragments)
        sizes = [piece.stop - piece.start for piece in self._slices]
        longest = 0 if self._plain else max(sizes)
        self._message = Message(world, weights[:longest], number=number)
        self._sums = make_sums(world, rule.wire, sizes, weights.dtype)
        self._state: State | None = None
        self._steps_taken = self._meetings = 0
        if not rule.start_after:
            self._make_state()
        self._begin_period()

    @property
    def bytes_sent(self) -> int:
        before = self._gradients.bytes_sent if self._gradients else 0
        return before + self._message.bytes_sent

    def announce(self, weight: float) -> None:
        """Gradients are not sent before the step."""

    def before_step(self, part: Part, watch: Stopwatch) -> Meeting | None:
        """Average gradients while that phase lasts."""
        if self._gradients and self._steps_taken < self._rule.start_after:
            return self._gradients.before_step(part, watch)
        return None

    def after_step(self, part: Part, watch: Stopwatch) -> Meeting | None:
        """Meet if it is time to, or if this rank has nothing else to do."""
        self._steps_taken += 1
        if self._steps_taken <= self._rule.start_after:
            if self._steps_taken == self._rule.start_after:
                self._make_state()
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

    def close(self) -> None:
        """Give the memory of the messages back."""
        self._message.close()
        if self._gradients is not None:
            self._gradients.close()

    def abandon(self) -> None:
        """Nobody is served."""

    def centre(self) -> Vector | None:
        """The rule's centre, where it has one; before that, the replicas are equal."""
        return None if self._state is None else self._rule.centre(self._state)

    def _meet(self, more: bool, stop: bool, watch: Stopwatch) -> Meeting:
        by_samples = self._rule.by_samples and not self._alone  # alone, 1 keeps every bit
        part = Part(self._samples, self._weight if by_samples else 1.0, more, stop)
        if self._state is None:
            meeting = Meeting(int(part.samples), part.weight, more, stop)
        else:
            meeting = self._merge_next_piece(self._state, part, watch)
        if not self._rule.keep_momentum:
            self._replica.reset_optimizer()
        watch.lap("communication")
        self._meetings += 1
        self._begin_period()
        return meeting

    def _merge_next_piece(self, whole: State, part: Part, watch: Stopwatch) -> Meeting:
        turn = self._meetings % len(self._slices)
        piece = self._slices[turn]
        weights = self._replica.parameters()[piece]
        state = {name: vector[piece] for name, vector in whole.items()}
        sent = self._message.vector[: weights.size]
        self._rule.contribute(weights, state, part.weight, out=sent)
        coded = self._sums[turn] if self._sums else None
        meeting = self._message.travel(part, watch, sent.size, coded)
        if meeting.weight:
            self._rule.merge(sent, meeting.weight, weights, state)
            self._replica.accept_parameters()
        return meeting

    def _make_state(self) -> None:
        if not self._plain:
            self._state = self._rule.begin(self._replica.parameters())

    def _begin_period(self) -> None:
        self._steps, self._samples, self._weight = 0, 0.0, 0.0
        self._began = monotonic()
