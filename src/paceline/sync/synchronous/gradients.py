"""The exchange of rules that sum gradients: before every step."""

from __future__ import annotations

import numpy as np

from paceline.comm import World
from paceline.comm.allreduce.coded import VectorAllreduce, make_sums
from paceline.comm.allreduce.powersgd import PowerSGDAllreduce
from paceline.core.trees import Tree
from paceline.core.vectors import Layout, copy_vectors, fill_vectors
from paceline.frameworks.replica import VectorModel
from paceline.observe import Stopwatch
from paceline.rules import GradientRule, State
from paceline.sync.interface import Contribution, Exchange, StepOutcome
from paceline.sync.settings import ExchangeContext, ExchangeSettings
from paceline.sync.synchronous.message import StepMessage


class GradientExchange(Exchange):
    """Merges the gradients of all replicas by the rule.

    The gradients lie in the message itself; its flags say which parameters got one. Alone, nothing
    is copied and nothing is sent.
    """

    replicas_stay_equal = True

    def __init__(
        self, world: World, model: VectorModel, rule: GradientRule, context: ExchangeContext
    ) -> None:
        self._model, self._rule, self._rank = model, rule, world.rank
        self.workers = tuple(range(world.size))
        self._message: StepMessage | None = None
        self._sum = _make_sum(world, model.layout, context.settings)
        if world.size > 1:
            weights = model.layout.empty_vector()
            entries = len(model.layout.entries)
            flags = entries + world.size
            self._message = StepMessage(world, weights, flags, context.exchange_id)
            self._present, self._speeds = np.split(self._message.flags, [entries])
            model.rehome(weights, self._message.vector)

    @property
    def bytes_sent(self) -> int:
        return self._message.bytes_sent if self._message else 0

    def before_step(self, mine: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """Merge the gradients that the replicas hold."""
        if self._message is None:
            return mine.alone()
        gradient, present = self._model.collect_gradients()
        self._rule.contribute(gradient, mine.weight, out=gradient)
        self._present[:] = present
        self._speeds[:] = 0
        self._speeds[self._rank] = mine.speed
        outcome = self._message.sum_over_ranks(mine, watch, coded=self._sum)
        self._rule.merge(gradient, outcome.weight, out=gradient)
        watch.lap("communication")
        self._model.accept_gradients(self._present)
        return outcome._replace(speeds=self._speeds)

    def snapshot(self) -> Tree:
        """What rounding carries over."""
        return {**copy_vectors(self._residuals())}

    def restore(self, saved: Tree, same_ranks: bool) -> None:
        """What rounding on other ranks carried over does not fit these."""
        if same_ranks:
            fill_vectors(self._residuals(), saved)

    def _residuals(self) -> State:
        return {} if self._sum is None else self._sum.residuals

    def close(self) -> None:
        """Give the memory of the messages back."""
        if self._message is not None:
            self._message.close()
        if self._sum is not None:
            self._sum.close()


def _make_sum(world: World, layout: Layout, settings: ExchangeSettings) -> VectorAllreduce | None:
    """How coded gradients are summed; None where they travel as they are, or not at all."""
    rank = settings.matrix_rank
    if rank is not None:
        return PowerSGDAllreduce(world, layout, rank) if world.size > 1 else None
    sums = make_sums(world, settings.wire, [layout.size], layout.dtype)
    return sums[0] if sums else None
