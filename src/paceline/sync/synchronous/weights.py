"""The exchange of rules that average weights: after a step, now and then."""

from __future__ import annotations

from time import monotonic
from typing import Any

from paceline.comm import World
from paceline.comm.allreduce.coded import make_sums
from paceline.core.chunks import split_evenly
from paceline.core.vectors import Vector, copy_vectors, fill_vectors
from paceline.observe import Stopwatch
from paceline.rules import BSP, State, WeightRule
from paceline.sync.replicas import check_finite_weights
from paceline.sync.synchronous.gradients import GradientExchange
from paceline.sync.synchronous.message import Contribution, StepMessage, StepOutcome


class WeightExchange:
    """Brings the weights of all replicas together when the rule's period is over.

    A rank that has no further batch in the epoch meets at once, and again until no rank has one: so
    ranks may take different numbers of steps, and all end the epoch together. The rule's state is
    made of the weights that the replicas have in common when they begin to train alone.
    """

    asynchronous, trains, replicas_stay_equal, filters_nonfinite = False, True, False, False
    steps_optimizer = False

    def __init__(self, world: World, replica: Any, rule: WeightRule, number: int = 0) -> None:
        self._replica, self._rule, self._alone = replica, rule, world.size == 1
        self._rank = world.rank
        self._plain = self._alone and rule.trivial_alone
        self._gradients = (
            GradientExchange(world, replica, BSP(wire=rule.wire), number)
            if rule.start_after
            else None
        )
        weights = replica.parameters()
        self._slices = split_evenly(weights.size, rule.fragments)
        sizes = [piece.stop - piece.start for piece in self._slices]
        longest = 0 if self._plain else max(sizes)
        self._message = StepMessage(world, weights[:longest], number=number)
        self._sums = make_sums(world, rule.wire, sizes, weights.dtype)
        self._state: State | None = None
        self._steps_taken = self._meetings = 0
        self._deferred: Contribution | None = None
        if not rule.start_after:
            self._make_state()
        self._begin_period()

    @property
    def bytes_sent(self) -> int:
        before = self._gradients.bytes_sent if self._gradients else 0
        return before + self._message.bytes_sent

    def last_backward(self, weight: float) -> None:
        """Gradients are not sent before the step."""

    def before_step(self, part: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """Average gradients while that phase lasts."""
        if self._gradients and self._steps_taken < self._rule.start_after:
            return self._gradients.before_step(part, watch)
        return None

    def after_step(self, part: Contribution, watch: Stopwatch) -> StepOutcome | None:
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
        over = not part.more or self._rule.period.is_over(self._steps, seconds)
        if not over and not (part.save or part.quit):
            return None
        return self._meet(part, watch, save_only=not over)

    def end_epoch(self, watch: Stopwatch) -> None:
        """Meet at the end of a user's epoch, whether the period is over or not."""
        if self._steps_taken >= self._rule.start_after:
            self._meet(Contribution(more=True), watch)

    def run_deferred(self, watch: Stopwatch) -> StepOutcome | None:
        """The meeting that somebody put off who came only to save, if this rank wants one."""
        if self._deferred is None:
            return None
        part, self._deferred = self._deferred, None
        return self._meet(part, watch)

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

    def snapshot(self) -> dict[str, Any]:
        """The rule's state and the period that is under way; the arrays are copies."""
        deferred = self._deferred
        return {
            "state": None if self._state is None else copy_vectors(self._state),
            "carried": {
                str(at): copy_vectors(s.residuals) for at, s in enumerate(self._sums or ())
            },
            "gradients": self._gradients.snapshot() if self._gradients else {},
            "steps_taken": self._steps_taken,
            "meetings": self._meetings,
            "steps": self._steps,
            "samples": self._samples,
            "weight": self._weight,
            "seconds": monotonic() - self._began,
            "put_off": None if deferred is None else [deferred.more, deferred.stop],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what `snapshot` gave."""
        self._steps_taken, self._meetings = saved["steps_taken"], saved["meetings"]
        self._steps, self._samples = saved["steps"], saved["samples"]
        self._weight = saved["weight"]
        self._began = monotonic() - saved["seconds"]
        more_and_stop = saved["put_off"]
        if more_and_stop is not None:
            self._deferred = Contribution(more=more_and_stop[0], stop=more_and_stop[1])
        if saved["state"] is not None:
            if self._state is None:
                self._make_state()
            fill_vectors(self._state or {}, saved["state"])
        for at, total in enumerate(self._sums or ()):
            fill_vectors(total.residuals, saved["carried"].get(str(at), {}))
        if self._gradients is not None:
            self._gradients.restore(saved["gradients"])

    def restore_shared(self, saved: dict[str, Any]) -> None:
        """The rule's state; the period begins anew."""
        self._steps_taken, self._meetings = saved["steps_taken"], saved["meetings"]
        if saved["state"] is not None:
            if self._state is None:
                self._make_state()
            fill_vectors(self._state or {}, saved["state"])

    def _meet(self, wishes: Contribution, watch: Stopwatch, save_only: bool = False) -> StepOutcome:
        weighted_by_samples = (
            self._rule.weighted_by_samples and not self._alone
        )  # alone, 1 keeps every bit
        part = wishes._replace(
            samples=self._samples, weight=self._weight if weighted_by_samples else 1.0
        )
        if self._state is None:
            meeting = StepOutcome(
                int(part.samples), part.weight, part.more, part.stop, part.save, part.quit
            )
            if save_only:
                meeting = meeting._replace(deferred=True)
        else:
            meeting = self._merge_next_piece(self._state, part, watch, save_only)
        if meeting.deferred:
            self._deferred = None if save_only else wishes._replace(save=False, quit=False)
            watch.lap("communication")
            return meeting
        if not self._rule.keep_momentum:
            self._replica.reset_optimizer()
        watch.lap("communication")
        self._meetings += 1
        self._begin_period()
        return meeting

    def _merge_next_piece(
        self, whole: State, part: Contribution, watch: Stopwatch, save_only: bool
    ) -> StepOutcome:
        turn = self._meetings % len(self._slices)
        piece = self._slices[turn]
        weights = self._replica.parameters()[piece]
        state = {name: vector[piece] for name, vector in whole.items()}
        sent = self._message.vector[: weights.size]
        check_finite_weights(weights, self._rank)
        self._rule.contribute(weights, state, part.weight, out=sent)
        coded = self._sums[turn] if self._sums else None
        meeting = self._message.sum_over_ranks(part, watch, sent.size, coded, save_only)
        if meeting.weight and not meeting.deferred:
            self._rule.merge(sent, meeting.weight, weights, state)
            self._replica.accept_parameters()
        return meeting

    def _make_state(self) -> None:
        if not self._plain:
            self._state = self._rule.init_state(self._replica.parameters())

    def _begin_period(self) -> None:
        self._steps, self._samples, self._weight = 0, 0.0, 0.0
        self._began = monotonic()
