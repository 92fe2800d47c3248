"""The exchange of rules that average gradients: before every step."""

from __future__ import annotations

from typing import Any

from paceline.comm import World
from paceline.comm.allreduce.coded import VectorAllreduce, make_sums
from paceline.comm.allreduce.powersgd import PowerSGDAllreduce
from paceline.core.vectors import Layout, Vector, copy_vectors, fill_vectors
from paceline.observe import Stopwatch
from paceline.rules import BSP
from paceline.sync.synchronous.message import Contribution, StepMessage, StepOutcome


class GradientExchange:
    """Averages the gradients of all replicas by the rule.

    The gradients lie in the message itself; its flags say which parameters got one. Alone, nothing
    is copied and nothing is sent.
    """

    asynchronous, trains, replicas_stay_equal, filters_nonfinite = False, True, True, False
    steps_optimizer = False

    def __init__(self, world: World, replica: Any, rule: BSP, number: int = 0) -> None:
        self._replica, self._rule = replica, rule
        self._message: StepMessage | None = None
        self._sum = _make_sum(world, replica.layout, rule)
        if world.size > 1:
            weights = replica.layout.empty_vector()
            self._message = StepMessage(world, weights, len(replica.layout.entries), number)
            replica.rehome(weights, self._message.vector)

    @property
    def bytes_sent(self) -> int:
        return self._message.bytes_sent if self._message else 0

    def last_backward(self, weight: float) -> None:
        """Gradients are not sent before the step."""

    def before_step(self, part: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """Average the gradients that the replicas hold."""
        if self._message is None:
            return StepOutcome(
                int(part.samples),
                part.weight,
                part.more,
                part.stop,
                save=part.save,
                quit=part.quit,
            )
        gradient, present = self._replica.collect_gradients()
        self._rule.contribute(gradient, part.weight, out=gradient)
        self._message.flags[:] = present
        meeting = self._message.sum_over_ranks(part, watch, coded=self._sum)
        self._rule.merge(gradient, meeting.weight, out=gradient)
        watch.lap("communication")
        self._replica.accept_gradients(self._message.flags)
        return meeting

    def after_step(self, part: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """All is done before the step."""
        return None

    def end_epoch(self, watch: Stopwatch) -> None:
        """Nothing is left to do."""

    def run_deferred(self, watch: Stopwatch) -> StepOutcome | None:
        """Nothing is put off."""
        return None

    def snapshot(self) -> dict[str, Any]:
        """What the sums carry over."""
        return copy_vectors(self._sum.residuals if self._sum is not None else {})

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what `snapshot` gave."""
        fill_vectors(self._sum.residuals if self._sum is not None else {}, saved)

    def restore_shared(self, saved: dict[str, Any]) -> None:
        """What the sums of the old ranks carried over does not fit these."""

    def close(self) -> None:
        """Give the memory of the messages back."""
        if self._message is not None:
            self._message.close()
        if isinstance(self._sum, PowerSGDAllreduce):
            self._sum.close()

    def abandon(self) -> None:
        """Nobody is served."""

    def centre(self) -> Vector | None:
        """The replicas are always equal."""
        return None


def _make_sum(world: World, layout: Layout, rule: BSP) -> VectorAllreduce | None:
    """How coded gradients are summed; None where they travel as they are, or not at all."""
    if rule.powersgd_rank is not None:
        return PowerSGDAllreduce(world, layout, rule.powersgd_rank) if world.size > 1 else None
    sums = make_sums(world, rule.wire, [layout.size], layout.dtype)
    return sums[0] if sums else None
