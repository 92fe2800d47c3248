"""The loop of one worker: batches in, steps out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from time import perf_counter
from typing import TypeGuard

import numpy as np

from paceline.comm import World
from paceline.core.trees import Tree
from paceline.core.vectors import Vector
from paceline.data import Batch, EpochRemainder, granted_batches
from paceline.data.sampling.epochs import PREFETCH_DEPTH
from paceline.data.sampling.split import EpochSplit
from paceline.frameworks.replica import scale_gradients
from paceline.observe import TimeSplit
from paceline.observe.step_samples import StepSamples
from paceline.observe.trial import open_trial
from paceline.sync.asynchronous.base import AsynchronousExchange
from paceline.sync.interface import Contribution, StepOutcome
from paceline.sync.replicas import check_equal
from paceline.training.balance import Balancer
from paceline.training.loop.dealing import DealtBatch
from paceline.training.loop.feed import micro_batches_of, open_feed, split_run
from paceline.training.loop.position import EpochPosition, StepUnderWay
from paceline.training.loop.state import RunState
from paceline.training.loop.stepper import StepLimits, Stepper, StepWishes
from paceline.training.loop.waiting import describe_run

StepHook = Callable[[float | None, int], None]
"""Called after a step with this rank's loss (None: it had no samples) and the world's samples."""

_LONGEST_LOT = 16
"""Batches that a worker may have in hand at most; a slow one would keep others waiting."""


class Worker:
    """Trains its replica on its share of the data."""

    def __init__(
        self,
        state: RunState,
        on_pause: Callable[[StepOutcome], None] = lambda outcome: None,
        is_due: Callable[[int], bool] = lambda step: False,
    ) -> None:
        """`on_pause` is called between two steps when all ranks are to save; `is_due` says after
        which step this worker asks for that."""
        self._state, self._on_pause, self._is_due = state, on_pause, is_due
        self.world, self.config, self.clock = state.world, state.config, state.clock
        self.replica, self.exchange, self.watch = state.replica, state.exchange, state.watch
        self.times = StepSamples(self.watch, self.exchange.asynchronous)
        self.stopped = False
        self.deferred: StepOutcome | None = None
        """Wishes that came with the last step of an epoch, to be granted at its end."""
        self.estimated_samples = 0
        """Samples of the world since the last exchange, as far as this worker can know."""
        self.unreported_samples = 0
        """How many more there were when all ranks came together only to save."""
        self.taken_by_rank: Vector | None = None
        """How many batches of the epoch each rank has had, as of the last exchange; in an elastic
        world."""
        self._under_way: StepUnderWay | None = None
        self._buffers_before: Vector | None = None
        """Those that a step has begun with, in an elastic world: it may be done again."""
        self._after_step: StepHook = lambda loss, samples: None
        self._weights, self._full_weight = state.data.weights, state.full_weight
        self._balancer = state.data.balancer
        self._bytes_recorded = 0
        self._trial = open_trial(state.world.rank, len(state.exchange.workers))
        if self._trial is not None:
            self._trial.facts = describe_run(state)
        limits = StepLimits(state.config.max_rejected, state.config.clip_norm)
        parts = state.replica, state.exchange, limits, state.watch, self._wishes
        self.stepper = Stepper(state.world.rank, *parts)
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """At its first sample."""
        if self._state.dealer is not None:
            self._state.dealer.end_epoch()
        self.position = EpochPosition(EpochRemainder(self.world.size, self._state.batch_size))
        self.taken_by_rank = None

    def snapshot(self) -> Tree:
        """What only this worker knows."""
        dealer = self._state.dealer
        if dealer is not None and not dealer.by_steps:
            self.position.taken = dealer.taken()
        return {
            "counts": self.clock.counts(),
            "position": self.position.snapshot(),
            "estimated_samples": self.estimated_samples,
            "rejected": self.stepper.rejected,
            "time": asdict(self.watch.peek()),
        }

    def restore(self, saved: Tree, position: EpochPosition, same_ranks: bool) -> None:
        """Go on at this position; with as many ranks as before, with all that `snapshot` gave."""
        self.position = position
        if same_ranks:
            self.clock.restore(saved["counts"])
            self.estimated_samples = saved["estimated_samples"]
            self.watch.put_back(TimeSplit(**saved["time"]))
        self.stepper.restore(self.clock.step, saved["rejected"] if same_ranks else 0)

    def train_epoch(self, before: Callable[[], None], after: StepHook) -> float | None:
        """Train the rest of the epoch; the mean training loss over all samples of the world, None
        if all were rejected."""
        position, self._after_step = self.position, after
        feed = open_feed(self._state, position)
        began = self.watch.start()
        self.times.begin()
        outcome = self._go_on(self.exchange.run_deferred(self.watch))
        while not _is_over(outcome):
            self._state.on_step()
            batch, more = feed.take()
            self.watch.lap("data")
            before()
            loss, outcome = self._step(batch, more)
            after(loss, self._count_step(batch, more, loss, outcome))
            began = self._record(began, loss, batch)
            if outcome is not None and not outcome.deferred:
                self.times.note()
            self._check_replicas()
            outcome = self._pause_if_asked(outcome)
        self.stopped = outcome.stop
        totals = np.array([position.loss_sum, position.samples_with_loss])
        self.world.all_reduce(totals)
        self.watch.lap("communication")
        if self._balancer is not None:
            self._balancer.learn()
        loss_sum, counted = totals.tolist()
        return loss_sum / counted if counted > 0 else None

    def settle(self, left: World) -> None:
        """Ranks were lost: finish the step that was under way, on all ranks that are left or on
        none."""
        settled, step = self.exchange.settle(left), self._under_way
        exchange = self.exchange.as_asynchronous()
        if exchange is not None:
            self._under_way = None
            if step is not None:
                self.clock.locate(int(exchange.ledger_reply.samples + exchange.estimated_samples))
                self._after_step(step.loss, 0)
        elif settled.counts and step is not None:
            samples = self._count_step(step.batch, step.more, step.loss, settled.outcome)
            self._after_step(step.loss, samples)
            self._record(perf_counter(), step.loss, step.batch)
        elif self._buffers_before is not None:
            self.replica.buffers()[:] = self._buffers_before
            self.replica.accept_buffers()

    def _count_step(
        self,
        batch: Batch | DealtBatch | None,
        more: bool,
        loss: float | None,
        outcome: StepOutcome | None,
    ) -> int:
        """A step is done: what this rank and the world have had; the world's samples."""
        self._under_way = self._buffers_before = None
        if batch is not None:
            self.position.add(batch.samples, loss)
        self.position.ended = not more
        if outcome is not None and outcome.taken is not None and not outcome.deferred:
            self.taken_by_rank = outcome.taken
        return self._count(batch, outcome)

    def _check_replicas(self) -> None:
        every = self.config.check_replicas
        if every is not None and self.clock.step % every == 0:
            check_equal(self.world, self.replica)
            self.watch.lap("communication")

    def _go_on(self, outcome: StepOutcome | None) -> StepOutcome | None:
        """Take in an exchange that a pause had deferred; this worker's step has been counted."""
        if outcome is not None:
            self.times.note()
            self.clock.catch_up(outcome.samples - self.estimated_samples)
            self.estimated_samples = self.unreported_samples = 0
            outcome = self._pause_if_asked(outcome)
        return outcome

    def _pause_if_asked(self, outcome: StepOutcome | None) -> StepOutcome | None:
        """Save if all ranks are to; the outcome that counts, which the pause may have deferred."""
        if outcome is None or not outcome.wants_pause:
            return outcome
        if _is_over(outcome) and not outcome.deferred:
            self.deferred = outcome
            return outcome
        self._on_pause(outcome)
        self.times.leave_out(self.watch.lap("communication"), saving=True)
        return self._go_on(self.exchange.run_deferred(self.watch)) if outcome.deferred else outcome

    def train_asynchronously(
        self, before: Callable[[], None], after: StepHook, meanwhile: Callable[[], None]
    ) -> None:
        """All epochs, asynchronously, until no batch is left or some rank asks to stop.

        `meanwhile` is called between steps, and while this worker waits for the last.
        """
        exchange = self.exchange.as_asynchronous()
        assert exchange is not None
        exchange.batches_wanted = min(exchange.report_every, _LONGEST_LOT)
        exchange.batches_wanted += PREFETCH_DEPTH * self.config.data.loaders
        self._after_step = after
        batches = self._granted(exchange) if exchange.trains else iter(())
        began = self.watch.start()
        self.times.begin()
        while exchange.has_batch(self.watch):
            self._state.on_step()
            batch = next(batches)
            self.watch.lap("data")
            before()
            loss, outcome = self._step(batch, more=True)
            self._under_way = None
            self.clock.locate(int(exchange.ledger_reply.samples + exchange.estimated_samples))
            after(loss, outcome.samples if outcome else 0)
            began = self._record(began, loss, batch)
            self.times.note()
            meanwhile()
            if exchange.wants_pause and exchange.on_pause is not None:
                self.watch.lap("compute")
                exchange.on_pause()
                self.times.leave_out(self.watch.lap("communication"), saving=True)
        exchange.leave(self.watch, meanwhile)
        self.stopped = exchange.ledger_reply.stop

    def _granted(self, exchange: AsynchronousExchange) -> Iterator[Batch]:
        data = self.config.data
        return granted_batches(
            self._state.data.train,
            exchange.grants,
            workers=self._state.numbered_for,
            balance=None if self._balancer is None else self._balancer.balance,
            batch_size=self._state.batch_size,
            seed=self.config.seed,
            shuffle=data.shuffle,
            prefetch=data.prefetch,
            loaders=data.loaders,
        )

    def _count(self, batch: Batch | DealtBatch | None, outcome: StepOutcome | None) -> int:
        """Advance the clock by what the world took in this step.

        Between two exchanges no rank knows, and all are assumed to be as fast as this one; the next
        exchange corrects that. One that only saves must change nothing.
        """
        if outcome is None or outcome.deferred:
            samples = (batch.samples if batch is not None else 0) * self.world.size
            self.estimated_samples += samples
            self.unreported_samples = (
                0 if outcome is None else outcome.samples - self.estimated_samples
            )
        else:
            samples = outcome.samples - self.estimated_samples
            self.estimated_samples = self.unreported_samples = 0
        self.clock.advance(samples)
        return samples

    def _record(self, began: float, loss: float | None, batch: Batch | DealtBatch | None) -> float:
        """Write the step's event; the time at which the next one begins."""
        self.watch.lap("compute")
        now = perf_counter()
        if self._trial is not None:
            self._trial.note(batch.samples if batch is not None else 0, self.watch)
        if self.config.events_every and self.clock.step % self.config.events_every == 0:
            self._state.outputs.events.write(
                "step",
                step=self.clock.step,
                seconds=now - began,
                loss=loss,
                samples=batch.samples if batch is not None else 0,
                bytes=self.bytes_unrecorded(),
            )
        return now

    def bytes_unrecorded(self) -> int:
        """Bytes sent since the last event that reported them."""
        before, self._bytes_recorded = self._bytes_recorded, self.exchange.bytes_sent
        return self._bytes_recorded - before

    def split_epoch(self, remainder: EpochRemainder) -> EpochSplit:
        """Which samples each rank takes of what is left of the epoch that runs."""
        return split_run(self._state, remainder)

    def _step(
        self, batch: Batch | DealtBatch | None, more: bool
    ) -> tuple[float | None, StepOutcome | None]:
        """One step of this rank; its loss, None if the batch was refused or there was none."""
        config = self.config
        if config.schedule.moves:
            factor = config.schedule.factor(self.clock.epochs, config.epochs)
            self.replica.scale_learning_rate(factor)
        if self.world.elastic and not self.exchange.asynchronous:
            self._buffers_before = self.replica.buffers().copy()
        loss = self._gradients(batch)
        self._under_way = StepUnderWay(batch, more, loss)
        samples = batch.samples if batch is not None else 0
        if loss is None:
            mine = self.stepper.contribution(samples, 0.0, more)
        else:
            mine = self.stepper.contribution(samples, self._weight_of(batch), more, loss * samples)
        mine = mine._replace(taken=self.position.taken + (batch is not None))
        where = batch.where if batch is not None else lambda: "no samples"
        if self._balancer is None:
            outcome = self.stepper.step(mine, where)
        else:
            outcome = self._step_and_learn(self._balancer, mine, where, batch)
        return None if self.stepper.refused else loss, outcome

    def _step_and_learn(
        self,
        balancer: Balancer,
        mine: Contribution,
        where: Callable[[], str],
        batch: Batch | DealtBatch | None,
    ) -> StepOutcome | None:
        """The same, and what it teaches about samples and ranks."""
        if batch is not None and batch.indices is not None:
            balancer.hand_out(batch.indices)
        outcome = self.stepper.step(mine._replace(speed=balancer.speed), where)
        speeds = None if outcome is None else outcome.speeds
        balancer.note_step(self.stepper.compute_s, speeds)
        return outcome

    def _weight_of(self, batch: Batch | DealtBatch | None) -> float:
        """What it counts in the mean of gradients; a full batch counts as 1."""
        if batch is None:
            return 0.0
        if self._weights is None:
            return batch.samples / self._full_weight
        return float(self._weights[batch.indices].sum()) / self._full_weight

    def _wishes(self) -> StepWishes:
        save = self._is_due(self.clock.step + 1)
        return StepWishes(
            self._state.stop_asked, save, self._state.stop_requests.reason is not None
        )

    def _dealt_gradients(self, batch: DealtBatch) -> float | None:
        """The same of as many micro-batches as this rank gets to."""
        loss = total = 0.0
        rejected = False
        self.replica.clear_gradients()
        for micro_batch in batch:
            weight = self._weight_of(micro_batch)
            if not weight:
                continue
            # After a rejection, too: samples of the step that nobody takes would not be counted.
            its_loss = self.replica.gradients(micro_batch, weight=weight, add=total > 0)
            if not math.isfinite(its_loss) and not rejected:
                self.stepper.reject(f"the loss is {its_loss}", micro_batch.where)
                rejected = True
            loss, total = loss + weight * its_loss, total + weight
        if rejected:
            self.replica.clear_gradients()
        if rejected or not total:
            return None
        scale_gradients(self.replica, 1 / total)
        return loss / total

    def _gradients(self, batch: Batch | DealtBatch | None) -> float | None:
        """This rank's mean loss, its gradients left in the replica; None if there are none."""
        if isinstance(batch, DealtBatch):
            return self._dealt_gradients(batch)
        weight_in_step = self._weight_of(batch)
        if batch is None or not weight_in_step:
            self.replica.clear_gradients()
            return None
        loss = 0.0
        micro_batches = micro_batches_of(batch, self.config)
        for index, micro_batch in enumerate(micro_batches):
            if index == len(micro_batches) - 1:
                self.exchange.last_backward(weight_in_step)
            weight = self._weight_of(micro_batch) / weight_in_step
            its_loss = self.replica.gradients(micro_batch, weight=weight, add=index > 0)
            if not math.isfinite(its_loss):
                self.stepper.reject(f"the loss is {its_loss}", micro_batch.where)
                return None
            loss += weight * its_loss
        return loss


def most_in_hand(loaders: int) -> int:
    """Batches that an asynchronous worker may have been granted and not trained on."""
    return _LONGEST_LOT + PREFETCH_DEPTH * loaders


def _is_over(outcome: StepOutcome | None) -> TypeGuard[StepOutcome]:
    """Whether it was the last of the epoch, or of the run."""
    return outcome is not None and (outcome.stop or not outcome.more)
