"""The exchange of rules that merge weights: after a step, now and then."""

from __future__ import annotations

from time import monotonic

import numpy as np

from paceline.comm import World
from paceline.comm.allreduce.coded import make_sums
from paceline.core.chunks import Span, split_evenly
from paceline.core.trees import Tree
from paceline.core.vectors import Vector, copy_vectors, fill_vectors
from paceline.frameworks.replica import VectorModel
from paceline.observe import Stopwatch
from paceline.rules import BSP, State, WeightRule
from paceline.sync.interface import Contribution, Exchange, Settled, StepOutcome
from paceline.sync.replicas import broadcast_tree, check_finite_weights
from paceline.sync.settings import ExchangeContext
from paceline.sync.synchronous.gradients import GradientExchange
from paceline.sync.synchronous.message import StepMessage


class WeightExchange(Exchange):
    """Merges the weights of all replicas when the rule's period is over.

    A rank that has no further batch in the epoch exchanges at once, and again until no rank has
    one: so ranks may take different numbers of steps, and all end the epoch together. The rule's
    state is made of the weights that the replicas have in common when they begin to train alone.
    """

    def __init__(
        self, world: World, model: VectorModel, rule: WeightRule, context: ExchangeContext
    ) -> None:
        self._model, self._rule, self._alone = model, rule, world.size == 1
        self._rank, self.workers = world.rank, tuple(range(world.size))
        self._plain = self._alone and rule.trivial_alone
        self._gradients = (
            GradientExchange(world, model, BSP(), context) if rule.start_after else None
        )
        weights = model.parameters()
        self._slices = split_evenly(weights.size, rule.fragments)
        sizes = [piece.stop - piece.start for piece in self._slices]
        longest = 0 if self._plain else max(sizes)
        flags = world.size if world.elastic else 0
        self._message = StepMessage(world, weights[:longest], flags, context.exchange_id)
        self._sums = make_sums(world, context.settings.wire, sizes, weights.dtype)
        self._state: State | None = None
        self._steps_taken = self._rounds_taken = 0
        self._deferred: Contribution | None = None
        self._exchanging = False
        """Whether this rank has taken a step whose exchange is not over."""
        self._last: StepOutcome | None = None
        if not rule.start_after:
            self._make_state()
        self._begin_period()

    @property
    def bytes_sent(self) -> int:
        before = self._gradients.bytes_sent if self._gradients else 0
        return before + self._message.bytes_sent

    def before_step(self, mine: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """Average gradients while that phase lasts."""
        if self._gradients and self._steps_taken < self._rule.start_after:
            return self._gradients.before_step(mine, watch)
        return None

    def after_step(self, mine: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """Exchange if the period is over, or if this rank has nothing else to do."""
        self._steps_taken += 1
        if self._steps_taken <= self._rule.start_after:
            if self._steps_taken == self._rule.start_after:
                self._make_state()
            self._begin_period()
            return None
        self._steps += 1
        self._samples += mine.samples
        self._weight += mine.weight
        seconds = monotonic() - self._began
        over = not mine.more or self._rule.period.is_over(self._steps, seconds)
        if not over and not (mine.save or mine.quit):
            return None
        return self._exchange(mine, watch, save_only=not over)

    def end_epoch(self, watch: Stopwatch) -> None:
        """Exchange at the end of a user's epoch, whether the period is over or not."""
        if self._steps_taken >= self._rule.start_after:
            self._exchange(Contribution(more=True), watch)

    def run_deferred(self, watch: Stopwatch) -> StepOutcome | None:
        if self._deferred is None:
            return None
        mine, self._deferred = self._deferred, None
        return self._exchange(mine, watch)

    def close(self) -> None:
        """Give the memory of the messages back."""
        self._message.close()
        if self._gradients is not None:
            self._gradients.close()

    def common_weights(self) -> Vector | None:
        """The rule's centre, where it has one; before that, the replicas are equal."""
        return None if self._state is None else self._rule.centre(self._state)

    def snapshot(self) -> Tree:
        """The rule's state and the period that is under way; the arrays are copies."""
        deferred = self._deferred
        sums = enumerate(self._sums or ())
        return {
            "state": None if self._state is None else copy_vectors(self._state),
            "common_weights": self._locate_common_weights(),
            "residuals": {str(at): copy_vectors(each.residuals) for at, each in sums},
            "gradients": self._gradients.snapshot() if self._gradients else {},
            "steps_taken": self._steps_taken,
            "rounds_taken": self._rounds_taken,
            "steps": self._steps,
            "samples": self._samples,
            "weight": self._weight,
            "seconds": monotonic() - self._began,
            "deferred": None if deferred is None else [deferred.more, deferred.stop],
        }

    def restore(self, saved: Tree, same_ranks: bool) -> None:
        """On other ranks than then the period begins anew, with the rule's state."""
        self._steps_taken, self._rounds_taken = saved["steps_taken"], saved["rounds_taken"]
        if saved["state"] is not None:
            if self._state is None:
                self._make_state()
            fill_vectors(self._state or {}, saved["state"])
        if not same_ranks:
            return
        self._steps, self._samples = saved["steps"], saved["samples"]
        self._weight = saved["weight"]
        self._began = monotonic() - saved["seconds"]
        more_and_stop = saved["deferred"]
        if more_and_stop is not None:
            self._deferred = Contribution(more=more_and_stop[0], stop=more_and_stop[1])
        for at, each in enumerate(self._sums or ()):
            fill_vectors(each.residuals, saved["residuals"].get(str(at), {}))
        if self._gradients is not None:
            self._gradients.restore(saved["gradients"], same_ranks)

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """Steps that began with an exchange of gradients, and exchanges of weights."""
        return self._rounds_taken + (self._gradients.rounds if self._gradients else 0)

    def settle(self, left: World) -> Settled:
        """Those whose last exchange came to nothing, while others have finished it, get the weights
        that came of it: the mean of the others', who may have gone on since."""
        in_gradients = self._steps_taken < self._rule.start_after
        found = left.allgather_values((self._rounds_taken, self._steps_taken, in_gradients))
        if self._gradients is not None and any(in_phase for *_, in_phase in found):
            return self._settle_gradients(self._gradients, left)
        rounds = [done for done, *_ in found]
        source, behind = rounds.index(max(rounds)), self._rounds_taken < max(rounds)
        outcome = left.bcast_value(self._last, source)
        if min(rounds) < max(rounds):
            self._take_over(left, max(rounds), source)
        counts, self._exchanging = self._exchanging, False
        return Settled(counts, outcome if behind else None)

    def _settle_gradients(self, gradients: GradientExchange, left: World) -> Settled:
        """In the phase that averages gradients."""
        settled = gradients.settle(left)
        if settled.counts:
            self._steps_taken += 1
            if self._steps_taken == self._rule.start_after:
                self._make_state()
            self._begin_period()
        counts, self._exchanging = settled.counts or self._exchanging, False
        return settled._replace(counts=counts)

    def _take_over(self, left: World, rounds: int, source: int) -> None:
        behind = self._rounds_taken < rounds
        merged = self._slices[(rounds - 1) % len(self._slices)]
        mine = self._model.parameters()
        total = np.zeros_like(mine[merged]) if behind else mine[merged].copy()
        ahead = left.size - sum(left.allgather_values(behind))
        left.all_reduce(total)
        state = broadcast_tree(left, copy_vectors(self._state or {}), source)
        if behind:
            mine[merged] = total / total.dtype.type(ahead)
            self._model.accept_parameters()
            fill_vectors(self._state or {}, state)
            if not self._rule.keep_momentum:
                self._model.reset_optimizer()
            self._rounds_taken = rounds
            self._begin_period()

    def _exchange(
        self, wishes: Contribution, watch: Stopwatch, save_only: bool = False
    ) -> StepOutcome:
        self._exchanging = True
        by_samples = self._rule.weighted_by_samples and not self._alone  # alone, 1 keeps every bit
        mine = wishes._replace(samples=self._samples, weight=self._weight if by_samples else 1.0)
        if self._state is None:
            outcome = mine.alone()._replace(deferred=save_only)
        else:
            outcome = self._merge_next_slice(self._state, mine, watch, save_only)
        if outcome.deferred:
            self._deferred = None if save_only else wishes._replace(save=False, quit=False)
            watch.lap("communication")
            self._exchanging = False
            return outcome
        if not self._rule.keep_momentum:
            self._model.reset_optimizer()
        watch.lap("communication")
        self._rounds_taken += 1
        self._begin_period()
        self._last, self._exchanging = outcome, False
        return outcome

    def _merge_next_slice(
        self, whole: State, mine: Contribution, watch: Stopwatch, save_only: bool
    ) -> StepOutcome:
        turn = self._rounds_taken % len(self._slices)
        piece = self._slices[turn]
        weights = self._model.parameters()[piece]
        state = {name: _part_of(vector, piece) for name, vector in whole.items()}
        sent = self._message.vector[: weights.size]
        check_finite_weights(weights, self._rank)
        self._rule.contribute(weights, state, mine.weight, out=sent)
        coded = self._sums[turn] if self._sums else None
        flags = self._message.flags
        if flags.size:
            flags[:] = 0
            flags[self._rank] = mine.taken
        outcome = self._message.sum_over_ranks(mine, watch, sent.size, coded, save_only)
        if flags.size:
            outcome = outcome._replace(taken=flags.copy())
        if outcome.weight and not outcome.deferred:
            self._rule.merge(sent, outcome.weight, weights, state)
            self._model.accept_parameters()
        return outcome

    def _locate_common_weights(self) -> str | Vector | None:
        """Which vector of the state they are, or a copy; so nobody needs the rule to find them."""
        common = self.common_weights()
        if common is None:
            return None
        names = (name for name, vector in (self._state or {}).items() if vector is common)
        return next(names, None) or common.copy()

    def _make_state(self) -> None:
        if not self._plain:
            self._state = self._rule.init_state(self._model.parameters())

    def _begin_period(self) -> None:
        self._steps, self._samples, self._weight = 0, 0.0, 0.0
        self._began = monotonic()


def _part_of(vector: Vector, piece: Span) -> Vector:
    """A piece of a rule's state; a count, of one element, goes with every piece."""
    return vector if vector.size == 1 else vector[piece]
