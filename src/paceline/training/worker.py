"""The loop of one worker: batches in, steps out, in pace with the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from paceline.comm import World
from paceline.data import Batch, Shard, dealt_batches, training_batches
from paceline.data.epochs import PREFETCH_DEPTH
from paceline.errors import TrainingError
from paceline.frameworks import Replica
from paceline.observe import EventLog, Stopwatch
from paceline.training.clock import Clock
from paceline.training.config import RunConfig
from paceline.training.exchange import Exchange, FreeExchange, Meeting, Part

StepHook = Callable[[float | None, int], None]
"""Called after a step with this rank's loss (None: it had no samples) and the world's samples."""

_LONGEST_LOT = 16
"""Batches that a worker may have in hand at most; a slow one would keep others waiting."""


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
    _supposed: int = 0
    _bytes_recorded: int = 0

    def train_epoch(self, source: Any, before: Callable[[], None], after: StepHook) -> float:
        """One epoch of the world; the mean training loss over all its samples."""
        loss_sum = 0.0
        batches = self._batches(source)
        began = self.watch.start()
        batch = next(batches, None)
        while True:
            following = next(batches, None) if batch is not None else None
            self.watch.lap("data")
            before()
            loss, meeting = self._step(batch, more=following is not None)
            if batch is not None and loss is not None:
                loss_sum += loss * batch.samples
            samples = self._count(batch, meeting)
            after(loss, samples)
            began = self._record(began, loss, batch)
            if meeting is not None and (meeting.stop or not meeting.more):
                self.stopped = meeting.stop
                break
            batch = following
        totals = np.array([loss_sum])
        self.world.all_reduce(totals)
        self.watch.lap("communication")
        return float(totals[0] / self.clock.samples_in_epoch)

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
        assert isinstance(exchange, FreeExchange)
        exchange.ahead = min(exchange.period, _LONGEST_LOT) + PREFETCH_DEPTH
        batches = self._dealt(source, exchange) if exchange.works else iter(())
        began = self.watch.start()
        while exchange.has_work(self.watch):
            batch = next(batches)
            self.watch.lap("data")
            before()
            loss, meeting = self._step(batch, more=True)
            self.clock.locate(int(exchange.news.samples + exchange.supposed))
            after(loss, meeting.samples if meeting else 0)
            began = self._record(began, loss, batch)
            meanwhile()
        exchange.leave(self.watch, meanwhile)
        self.stopped = exchange.news.stop

    def _dealt(self, source: Any, exchange: FreeExchange) -> Iterator[Batch]:
        data = self.config.data
        return dealt_batches(
            source,
            exchange.tickets,
            workers=self.world.size,
            batch_size=data.batch_size * self.config.accumulate,
            seed=self.config.seed,
            shuffle=data.shuffle,
            prefetch=data.prefetch,
        )

    def _count(self, batch: Batch | None, meeting: Meeting | None) -> int:
        """Advance the clock by what the world took in this step.

        Between two meetings nobody knows, and all ranks are taken to be as quick as this one; the
        next meeting tells, and puts it right.
        """
        if meeting is None:
            samples = (batch.samples if batch is not None else 0) * self.world.size
            self._supposed += samples
        else:
            samples = meeting.samples - self._supposed
            self._supposed = 0
        self.clock.advance(samples)
        return samples

    def _record(self, began: float, loss: float | None, batch: Batch | None) -> float:
        """Write the step's event; the time at which the next one begins."""
        self.watch.lap("compute")
        now = perf_counter()
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

    def _batches(self, source: Any) -> Iterator[Batch]:
        data = self.config.data
        return training_batches(
            source,
            shard=Shard(self.world.rank, self.world.size),
            batch_size=data.batch_size * self.config.accumulate,
            seed=self.config.seed,
            epoch=self.clock.epoch,
            shuffle=data.shuffle,
            prefetch=data.prefetch,
        )

    def _step(self, batch: Batch | None, more: bool) -> tuple[float | None, Meeting | None]:
        config = self.config
        if config.schedule.moves:
            factor = config.schedule.factor(self.clock.epochs, config.epochs)
            self.replica.scale_learning_rate(factor)
        samples = batch.samples if batch is not None else 0
        weight = samples / (config.data.batch_size * config.accumulate)
        loss = self._gradients(batch, weight)
        part = Part(samples, weight, more, self.stop_asked, (loss or 0.0) * samples)
        meeting = self.exchange.before_step(part, self.watch)
        if not (meeting.applied if meeting is not None else batch is None):
            if config.clip_norm is not None:
                self.replica.clip(config.clip_norm)
            self.replica.apply()
        return loss, self.exchange.after_step(part, self.watch) or meeting

    def _parts_of(self, batch: Batch) -> int:
        """In how many parts to compute: none larger than a batch, none of a single sample."""
        size = self.config.data.batch_size
        most = batch.samples if size == 1 else max(1, batch.samples // 2)
        return min(-(-batch.samples // size), most) if self.config.accumulate > 1 else 1

    def _gradients(self, batch: Batch | None, weight_in_step: float) -> float | None:
        """This rank's mean loss, its gradients left in the replica."""
        if batch is None:
            self.replica.clear_gradients()
            return None
        loss = 0.0
        parts = batch.split(self._parts_of(batch))
        for index, part in enumerate(parts):
            if index == len(parts) - 1:
                self.exchange.announce(weight_in_step)
            weight = part.samples / batch.samples
            part_loss = self.replica.gradients(part, weight=weight, add=index > 0)
            if not math.isfinite(part_loss):
                raise TrainingError(
                    f"the loss is {part_loss} at step {self.clock.step + 1} on rank "
                    f"{self.world.rank}, for {part.where()}; look at these samples, or lower the "
                    "learning rate"
                )
            loss += weight * part_loss
        return loss
