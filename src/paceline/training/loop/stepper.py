"""One step of one rank, in order: for a Trainer, a user's loop and Keras' `fit`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from paceline.core.vectors import Vector
from paceline.errors import TrainingError
from paceline.observe import Stopwatch
from paceline.runtime.watchdog import watched
from paceline.sync.interface import Contribution, Exchange, StepOutcome

_log = logging.getLogger("paceline.training")


class SteppedModel(Protocol):
    """What a step needs of a model and its optimizer."""

    def clear_gradients(self) -> None: ...
    def gradients_are_finite(self) -> bool: ...
    def clip(self, max_norm: float) -> float: ...
    def apply(self) -> None: ...


class StepLimits(NamedTuple):
    """What a step may do at most, and when a run that goes wrong ends."""

    max_rejected: int = 10
    """Steps of one rank whose gradients are not finite."""
    clip_norm: float | None = None
    refuses_nonfinite: bool = True
    """False: the optimizer skips such steps itself, as one that scales the loss does."""
    stall_warning_s: float = 30.0
    stall_timeout_s: float = 1800.0


class StepWishes(NamedTuple):
    """What this rank asks all ranks for."""

    stop: bool = False
    save: bool = False
    quit: bool = False


def no_wishes() -> StepWishes:
    return StepWishes()


class Stepper:
    """Refuse what is not finite, exchange, clip, step, exchange: the one place with this order.

    A Trainer calls `step`. Where somebody else calls the optimizer, `before` and `after` go around
    it. `drain` takes part in the steps of ranks that still have batches.
    """

    def __init__(
        self,
        rank: int,
        model: SteppedModel,
        exchange: Exchange,
        limits: StepLimits,
        watch: Stopwatch,
        wishes: Callable[[], StepWishes] = no_wishes,
    ) -> None:
        self._model, self._limits, self._wishes = model, limits, wishes
        self.change(rank, exchange)
        self.watch = watch
        self.steps = 0
        """Steps of this rank."""
        self.rejected = 0
        """Those whose loss or gradients were not finite, and did not count."""
        self.refused = False
        """Whether the last contribution was refused here: its loss does not count."""
        self.stop_heard = False
        """Whether some rank has asked to stop."""
        self.compute_s = 0.0
        """Seconds that this rank computed before its last exchange of gradients."""
        self.taken_by_rank: Vector | None = None
        """How many batches each rank has had, as of the last exchange; in an elastic world."""
        self._mine = Contribution()
        self._outcome: StepOutcome | None = None

    def restore(self, steps: int, rejected: int) -> None:
        """Go on after so many steps."""
        self.steps, self.rejected = steps, rejected

    def change(self, rank: int, exchange: Exchange) -> None:
        """Go on with other ranks."""
        self._rank, self._exchange = rank, exchange
        self._refuses = self._limits.refuses_nonfinite and not exchange.filters_nonfinite
        self._clips = self._limits.clip_norm if not exchange.steps_optimizer else None

    def before_again(self, batches: int) -> StepOutcome | None:
        """`before` came to nothing, since ranks were lost, and the gradients are what they were."""
        return self.before(self._mine._replace(taken=batches))

    def contribution(
        self, samples: float, weight: float, more: bool, loss: float = 0.0
    ) -> Contribution:
        """What this rank brings to a step, with its wishes."""
        stop, save, quit = self._wishes()
        return Contribution(samples, weight, more, stop, loss, save=save, quit=quit)

    def before(
        self, mine: Contribution, where: Callable[[], str] | None = None
    ) -> StepOutcome | None:
        """All that comes before the optimizer's step; `where` names the samples, in an error."""
        self.refused = False
        if self._refuses and not self._model.gradients_are_finite():
            self.reject("a gradient is not finite", where)
            self.refused = True
            mine = mine._replace(weight=0.0, loss=0.0)
        outcome = self._exchange_gradients(mine)
        if outcome is not None and outcome.rejected:
            self._count_rejected("a gradient is not finite", where)
        return outcome

    def must_step(self) -> bool:
        """Whether there is a gradient that the exchange has not used itself."""
        weight = self._mine.weight if self._outcome is None else self._outcome.weight
        return weight > 0 and not self._exchange.steps_optimizer

    def after(self, mine: Contribution | None = None, exchanges: bool = True) -> StepOutcome | None:
        """All that comes after the optimizer's step; `mine` if it is not that of `before`."""
        self.steps += 1
        if not exchanges:
            return self._outcome
        return self._exchange_weights(self._mine if mine is None else mine)

    def step(
        self, mine: Contribution, where: Callable[[], str] | None = None
    ) -> StepOutcome | None:
        """A whole step, the optimizer's included."""
        self.before(mine, where)
        if self.must_step():
            self._model.apply()
        return self.after()

    def drain(self, batches: int = 0) -> int:
        """Take part without samples until no rank has a further batch; how many of these steps
        the model's own optimizer took. This rank has had so many batches of the epoch."""
        taken, outcome = 0, None
        while outcome is None or outcome.more:
            self._model.clear_gradients()
            mine = self.contribution(0, 0.0, more=False)._replace(taken=batches)
            self._exchange_gradients(mine)
            if self.must_step():
                self._model.apply()
                taken += 1
            outcome = self._exchange_weights(mine)
        return taken

    def reject(self, what: str, where: Callable[[], str] | None = None) -> None:
        """Keep this rank's gradients out of the step: no other rank gets to see them."""
        self._model.clear_gradients()
        self._count_rejected(what, where)

    def watched(self) -> AbstractContextManager[None]:
        """Around what waits for other ranks; in the thread that waits."""
        limits = self._limits.stall_warning_s, self._limits.stall_timeout_s
        return watched(self.progress, *limits)

    def progress(self) -> tuple[int, int]:
        """A count that grows while this rank gets on, and its step."""
        return self.watch.laps, self.steps

    def _exchange_gradients(self, mine: Contribution) -> StepOutcome | None:
        self.compute_s = self.watch.lap("compute")
        self._mine = mine
        self._outcome = outcome = self._exchange.before_step(mine, self.watch)
        self.hear(outcome)
        if self._clips is not None:
            self._model.clip(self._clips)
        return outcome

    def _exchange_weights(self, mine: Contribution) -> StepOutcome | None:
        self.watch.lap("compute")
        outcome = self._exchange.after_step(mine, self.watch) or self._outcome
        self.hear(outcome)
        return outcome

    def hear(self, outcome: StepOutcome | None) -> None:
        """Take in what all ranks know after an exchange."""
        if outcome is None:
            return
        if outcome.stop:
            self.stop_heard = True
        if outcome.taken is not None and not outcome.deferred:
            self.taken_by_rank = outcome.taken

    def _count_rejected(self, what: str, where: Callable[[], str] | None) -> None:
        """Too many end the run."""
        self.rejected += 1
        place = "" if where is None else f", for {where()}"
        found = f"{what} at step {self.steps + 1} on rank {self._rank}{place}"
        most = self._limits.max_rejected
        if self.rejected > most:
            counted = f" ({self.rejected} rejected, max_rejected is {most})" if most else ""
            raise TrainingError(
                f"{found}{counted}; leave out or fill in (numpy.nan_to_num) samples that are not "
                "finite, or lower the learning rate"
            )
        _log.warning("%s: rejected (%d of at most %d)", found, self.rejected, most)
