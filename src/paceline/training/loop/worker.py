"""The loop of one worker: batches in, steps out, in pace with the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeGuard

import numpy as np

from paceline.checkpoint.saver import Saver
from paceline.comm import World
from paceline.config.run import RunConfig
from paceline.data import Batch, EpochRemainder, Shard, Stream, granted_batches, training_batches
from paceline.data.sampling.epochs import PREFETCH_DEPTH
from paceline.frameworks import Replica
from paceline.observe import EventLog, Stopwatch
from paceline.observe.trial import TrialLog, open_trial
from paceline.runtime.stop_requests import StopRequests
from paceline.sync.asynchronous.base import AsynchronousExchange
from paceline.sync.interface import Exchange, StepOutcome
from paceline.sync.replicas import check_equal
from paceline.training.loop.clock import Clock
from paceline.training.loop.stepper import StepLimits, Stepper, StepWishes

StepHook = Callable[[float | None, int], None]
"""Called after a step with this rank's loss (None: it had no samples) and the world's samples."""

_LONGEST_LOT = 16
"""Batches that a worker may have in hand at most; a slow one would keep others waiting."""


@dataclass
class EpochPosition:
    """Where a worker is in the epoch."""

    leg: EpochRemainder
    taken: int = 0
    """Batches of the leg that it has trained on."""
    ended: bool = False
    """It has had its last one."""
    loss_sum: float = 0.0
    left_out: float = 0.0
    """Samples without a loss: those of rejected batches."""
    before_s: float = 0.0
    """Seconds of the epoch before the run was interrupted."""
    began: float = field(default_factory=perf_counter)

    def elapsed(self) -> float:
        """Seconds of the epoch so far."""
        return self.before_s + perf_counter() - self.began


class _Feed:
    """A rank's batches, and whether more will come.

    Of data with a length that is known, and no batch is made before it is needed: what making it
    draws from random numbers must come after a checkpoint, not before.
    """

    def __init__(self, batches: Iterator[Batch], left: int | None) -> None:
        self._batches, self._left = batches, left
        self._ahead = next(batches, None) if left is None else None

    def take(self) -> tuple[Batch | None, bool]:
        if self._left is not None:
            self._left -= 1
            return next(self._batches, None), self._left > 0
        batch = self._ahead
        self._ahead = next(self._batches, None) if batch is not None else None
        return batch, self._ahead is not None


@dataclass
class Worker:
    """Trains its replica on its share of the data."""

    world: World
    replica: Replica
    exchange: Exchange
    config: RunConfig
    clock: Clock
    watch: Stopwatch
    events: EventLog
    stop_asked: bool = False
    """Set it on any rank; all ranks stop after the step that follows."""
    stopped: bool = False
    orders: StopRequests = field(default_factory=StopRequests)
    saver: Saver | None = None
    on_pause: Callable[[StepOutcome], None] = lambda meeting: None
    """Called between two steps when all ranks are to save."""
    place: EpochPosition = field(init=False)
    deferred: StepOutcome | None = field(default=None, init=False)
    """Wishes that came with the last step of an epoch, to be heeded at its end."""
    estimated_samples: int = 0
    """Samples of the world since its last meeting, as far as this worker can know."""
    unknown: int = 0
    """How many there were more when all came together only to save."""
    _bytes_recorded: int = 0
    numbered_for: int | None = None
    """For how many workers batches were numbered, if the run began with others."""

    stepper: Stepper = field(init=False)
    _trial: TrialLog | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        exchange, workers = self.exchange, self.world.size
        if isinstance(exchange, AsynchronousExchange):
            workers = len(exchange.roles.workers)
        self._trial = open_trial(self.world.rank, workers)
        limits = StepLimits(self.config.max_rejected, self.config.clip_norm)
        self.stepper = Stepper(
            self.world.rank, self.replica, exchange, limits, self.watch, self._wishes
        )
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """At its first sample."""
        data = self.config.data
        self.place = EpochPosition(
            EpochRemainder(self.world.size, data.batch_size * self.config.accumulate)
        )

    def train_epoch(self, source: Any, before: Callable[[], None], after: StepHook) -> float | None:
        """The epoch of the world from this worker's place in it; the mean training loss over all
        its samples, None if all were rejected."""
        place = self.place
        feed = self._feed(source)
        began = self.watch.start()
        meeting = self._go_on(self.exchange.run_deferred(self.watch))
        while not _is_over(meeting):
            batch, more = feed.take()
            self.watch.lap("data")
            before()
            loss, meeting = self._step(batch, more)
            if batch is not None:
                place.taken += 1
                place.loss_sum += (loss or 0.0) * batch.samples
                place.left_out += batch.samples if loss is None else 0
            place.ended = not more
            after(loss, self._count(batch, meeting))
            began = self._record(began, loss, batch)
            self._check_replicas()
            meeting = self._pause_if_asked(meeting)
        self.stopped = meeting.stop
        totals = np.array([place.loss_sum, place.left_out])
        self.world.all_reduce(totals)
        self.watch.lap("communication")
        loss_sum, left_out = totals.tolist()
        counted = self.clock.samples_in_epoch - left_out
        return loss_sum / counted if counted > 0 else None

    def _check_replicas(self) -> None:
        every = self.config.check_replicas
        if every is not None and self.clock.step % every == 0:
            check_equal(self.world, self.replica)
            self.watch.lap("communication")

    def _go_on(self, meeting: StepOutcome | None) -> StepOutcome | None:
        """A meeting that a pause had put off; this worker's step has been counted."""
        if meeting is not None:
            self.clock.catch_up(meeting.samples - self.estimated_samples)
            self.estimated_samples = self.unknown = 0
            meeting = self._pause_if_asked(meeting)
        return meeting

    def _pause_if_asked(self, meeting: StepOutcome | None) -> StepOutcome | None:
        """Save if all are to; then the meeting that counts, which the pause may have put off."""
        if meeting is None or not meeting.wants_pause:
            return meeting
        if _is_over(meeting) and not meeting.deferred:
            self.deferred = meeting
            return meeting
        self.on_pause(meeting)
        self.watch.lap("communication")
        return self._go_on(self.exchange.run_deferred(self.watch)) if meeting.deferred else meeting

    def train_freely(
        self,
        source: Any,
        before: Callable[[], None],
        after: StepHook,
        meanwhile: Callable[[], None],
    ) -> None:
        """All epochs at this worker's own pace, until no batch is left or somebody asks to stop.

        `meanwhile` is called between steps, and while this worker waits for the last.
        """
        exchange = self.exchange
        assert isinstance(exchange, AsynchronousExchange)
        exchange.batches_wanted = min(exchange.report_every, _LONGEST_LOT)
        exchange.batches_wanted += PREFETCH_DEPTH * self.config.data.loaders
        batches = self._dealt(source, exchange) if exchange.trains else iter(())
        began = self.watch.start()
        while exchange.has_batch(self.watch):
            batch = next(batches)
            self.watch.lap("data")
            before()
            loss, meeting = self._step(batch, more=True)
            self.clock.locate(int(exchange.ledger_reply.samples + exchange.estimated_samples))
            after(loss, meeting.samples if meeting else 0)
            began = self._record(began, loss, batch)
            meanwhile()
            if exchange.wants_pause and exchange.on_pause is not None:
                exchange.on_pause()
        exchange.leave(self.watch, meanwhile)
        self.stopped = exchange.ledger_reply.stop

    def _dealt(self, source: Any, exchange: AsynchronousExchange) -> Iterator[Batch]:
        data = self.config.data
        return granted_batches(
            source,
            exchange.tickets,
            workers=self.numbered_for or self.world.size,
            batch_size=data.batch_size * self.config.accumulate,
            seed=self.config.seed,
            shuffle=data.shuffle,
            prefetch=data.prefetch,
            loaders=data.loaders,
        )

    def _count(self, batch: Batch | None, meeting: StepOutcome | None) -> int:
        """Advance the clock by what the world took in this step.

        Between two meetings nobody knows, and all ranks are taken to be as quick as this one; the
        next meeting tells, and puts it right. One that only saves must change nothing.
        """
        if meeting is None or meeting.deferred:
            samples = (batch.samples if batch is not None else 0) * self.world.size
            self.estimated_samples += samples
            self.unknown = 0 if meeting is None else meeting.samples - self.estimated_samples
        else:
            samples = meeting.samples - self.estimated_samples
            self.estimated_samples = self.unknown = 0
        self.clock.advance(samples)
        return samples

    def _record(self, began: float, loss: float | None, batch: Batch | None) -> float:
        """Write the step's event; the time at which the next one begins."""
        self.watch.lap("compute")
        now = perf_counter()
        if self._trial is not None:
            self._trial.note(batch.samples if batch is not None else 0, self.watch)
        if self.config.events_every and self.clock.step % self.config.events_every == 0:
            self.events.write(
                "step",
                step=self.clock.step,
                seconds=now - began,
                loss=loss,
                samples=batch.samples if batch is not None else 0,
                bytes=self.bytes_unrecorded(),
            )
        return now

    def bytes_unrecorded(self) -> int:
        """Bytes sent since the last event that told of some."""
        before, self._bytes_recorded = self._bytes_recorded, self.exchange.bytes_sent
        return self._bytes_recorded - before

    def _feed(self, source: Any) -> _Feed:
        """The batches of the epoch that this worker has not had."""
        data, place = self.config.data, self.place
        if place.ended:
            return _Feed(iter(()), 0)
        batches = training_batches(
            source,
            shard=Shard(self.world.rank, self.world.size),
            batch_size=place.leg.batch_size,
            seed=self.config.seed,
            epoch=self.clock.epoch,
            shuffle=data.shuffle,
            remainder=place.leg,
            taken=place.taken,
            prefetch=data.prefetch,
            loaders=data.loaders,
        )
        if isinstance(source, Stream):
            return _Feed(batches, None)
        return _Feed(batches, place.leg.batches(len(source), self.world.rank) - place.taken)

    def _step(self, batch: Batch | None, more: bool) -> tuple[float | None, StepOutcome | None]:
        """One step of this rank; its loss, None if the batch was refused or there was none."""
        config = self.config
        if config.schedule.moves:
            factor = config.schedule.factor(self.clock.epochs, config.epochs)
            self.replica.scale_learning_rate(factor)
        samples = batch.samples if batch is not None else 0
        weight = samples / (config.data.batch_size * config.accumulate)
        loss = self._gradients(batch, weight)
        if loss is None:
            mine = self.stepper.contribution(samples, 0.0, more)
        else:
            mine = self.stepper.contribution(samples, weight, more, loss * samples)
        where = batch.where if batch is not None else lambda: "no samples"
        outcome = self.stepper.step(mine, where)
        return None if self.stepper.refused else loss, outcome

    def _wishes(self) -> StepWishes:
        save = self.saver is not None and self.saver.is_due(self.clock.step + 1)
        return StepWishes(self.stop_asked, save, self.orders.reason is not None)

    def _micro_batches(self, batch: Batch) -> list[Batch]:
        """What to compute at a time: none larger than a batch, none of a single sample."""
        if self.config.accumulate == 1:
            return batch.split(1)
        size = self.config.data.batch_size
        most = batch.samples if size == 1 else max(1, batch.samples // 2)
        return batch.split(min(-(-batch.samples // size), most))

    def _gradients(self, batch: Batch | None, weight_in_step: float) -> float | None:
        """This rank's mean loss, its gradients left in the replica; None if there are none."""
        if batch is None:
            self.replica.clear_gradients()
            return None
        loss = 0.0
        micro_batches = self._micro_batches(batch)
        for index, micro_batch in enumerate(micro_batches):
            if index == len(micro_batches) - 1:
                self.exchange.last_backward(weight_in_step)
            weight = micro_batch.samples / batch.samples
            its_loss = self.replica.gradients(micro_batch, weight=weight, add=index > 0)
            if not math.isfinite(its_loss):
                self.stepper.reject(f"the loss is {its_loss}", micro_batch.where)
                return None
            loss += weight * its_loss
        return loss


def _is_over(meeting: StepOutcome | None) -> TypeGuard[StepOutcome]:
    """Whether it was the last of the epoch, or of the run."""
    return meeting is not None and (meeting.stop or not meeting.more)
