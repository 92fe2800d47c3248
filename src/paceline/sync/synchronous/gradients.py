"""The exchange of rules that sum gradients: before every step."""

from __future__ import annotations

import numpy as np

from paceline.comm import World
from paceline.comm.allreduce.coded import VectorAllreduce, make_sums
from paceline.comm.allreduce.powersgd import PowerSGDAllreduce
from paceline.core.trees import Tree
from paceline.core.vectors import Layout, Vector, copy_vectors, fill_vectors
from paceline.frameworks.replica import VectorModel
from paceline.observe import Stopwatch
from paceline.rules import GradientRule, State
from paceline.sync.interface import Contribution, Exchange, Settled, StepOutcome
from paceline.sync.replicas import copy_state
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
        self._last: StepOutcome | None = None
        self._kept: tuple[Vector, Vector] | None = None
        """The gradients of the step that is under way, before they are summed, and which there are;
        if they are to be kept."""
        self._exchanging = False
        self._sum = _make_sum(world, model.layout, context.settings)
        if world.size > 1:
            weights = model.layout.empty_vector()
            entries = len(model.layout.entries)
            ends = entries, entries + world.size
            flags = ends[1] + (world.size if world.elastic else 0)
            self._message = StepMessage(world, weights, flags, context.exchange_id)
            self._present, self._speeds, self._taken = np.split(self._message.flags, ends)
            model.rehome(weights, self._message.vector)
            if context.keeps_gradients:
                self._kept = np.empty_like(weights), np.empty_like(self._present)

    @property
    def bytes_sent(self) -> int:
        return self._message.bytes_sent if self._message else 0

    def before_step(self, mine: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """Merge the gradients that the replicas hold."""
        if self._message is None:
            return mine.alone()
        gradient, present = self._model.collect_gradients()
        if self._kept is not None:
            self._kept[0][:], self._kept[1][:] = gradient, present
        self._exchanging = True
        self._rule.contribute(gradient, mine.weight, out=gradient)
        self._present[:] = present
        self._speeds[:] = 0
        self._speeds[self._rank] = mine.speed
        if self._taken.size:
            self._taken[:] = 0
            self._taken[self._rank] = mine.taken
        outcome = self._message.sum_over_ranks(mine, watch, coded=self._sum)
        self._rule.merge(gradient, outcome.weight, out=gradient)
        watch.lap("communication")
        self._model.accept_gradients(self._present)
        self._exchanging = False
        self.rounds += 1
        taken = self._taken.copy() if self._taken.size else None
        self._last = outcome._replace(speeds=self._speeds, taken=taken)
        return self._last

    def snapshot(self) -> Tree:
        """What rounding carries over."""
        return {**copy_vectors(self._residuals())}

    def restore(self, saved: Tree, same_ranks: bool) -> None:
        """What rounding on other ranks carried over does not fit these."""
        if same_ranks:
            fill_vectors(self._residuals(), saved)

    def settle(self, left: World) -> Settled:
        """Those that are a step behind get what the others have."""
        rounds = left.allgather_values(self.rounds)
        source, behind = rounds.index(max(rounds)), self.rounds < max(rounds)
        outcome = left.bcast_value(self._last, source)
        if min(rounds) < max(rounds):
            copy_state(left, self._model, source, behind)
        if self._exchanging and not behind and self._kept is not None and self._message:
            self._message.vector[:] = self._kept[0]
            self._model.accept_gradients(self._kept[1])
        self.rounds, self._exchanging = max(rounds), False
        return Settled(behind, outcome if behind else None)

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
