"""Epochs that all ranks end together."""

from __future__ import annotations

from dataclasses import asdict
from time import perf_counter
from typing import NamedTuple

import numpy as np

from paceline.comm.rank0 import on_rank0
from paceline.core.trees import Tree
from paceline.observe import EpochRecord
from paceline.sync.interface import StepOutcome
from paceline.sync.make import load_common_weights
from paceline.sync.replicas import average_buffers
from paceline.training.callbacks import Logs
from paceline.training.loop.run import ASKED, TrainingRun, further_figures, mean_over_ranks
from paceline.training.loop.state import RunState
from paceline.training.loop.worker import Worker


class Trained(NamedTuple):
    """An epoch that has been trained, and has no record yet: it may have to be validated."""

    samples: int
    train_loss: float | None
    seconds: float
    stopped: bool
    """Whether it was the last, since a callback asked to stop."""


class SyncRun(TrainingRun):
    """The run of a synchronous rule: all ranks end every epoch together, and validate."""

    def __init__(self, state: RunState) -> None:
        super().__init__(state, Worker(state, self._pause, self.is_due))
        self.reason: str | None = None
        self.trained: Trained | None = None

    def train(self) -> str | None:
        self.begin()
        while self.trained is not None or not self._is_done():
            self.trained = self.trained or self._train_epoch()
            record = self._make_record(self.trained)
            if record is None:  # a resumed run validates it
                self.save()
                self.leave(self.world)
            figures, stopped, self.trained = self.note(record), self.trained.stopped, None
            on_rank0(self.world, self.save_history)
            self.notify("on_epoch_end", record.epoch, figures)
            stop, save, quit = self._agree_at_end()
            self.reason = ASKED if stop or stopped else self.stopping.reason(figures)
            regular = self.saver.each_epoch or (self._is_done() and self.saver.regular)
            if save or quit or regular:
                self.save(on_disk=quit or regular)
            if quit and not self._is_done():
                self.leave(self.world)
        self._validate_last()
        # Before the last event: callbacks may put other weights there.
        load_common_weights(self.replica, self.exchange)
        self.end(self.reason)
        return self.reason

    def snapshot(self) -> Tree:
        trained = None if self.trained is None else self.trained._asdict()
        return {"reason": self.reason, "trained": trained}

    def restore(self, saved: Tree) -> None:
        self.reason = saved["reason"]
        self.trained = None if saved["trained"] is None else Trained(**saved["trained"])

    def save(self, on_disk: bool = True) -> None:
        """All ranks together, between two steps."""
        self.keep(on_rank0(self.world, lambda: self.open_checkpoint(on_disk)))

    def _pause(self, outcome: StepOutcome) -> None:
        self.save(on_disk=outcome.quit)
        if outcome.quit:
            self.leave(self.world)

    def _is_done(self) -> bool:
        return self.clock.epoch >= self.config.epochs or self.reason is not None

    def _train_epoch(self) -> Trained:
        self.begin_epoch(self.clock.epoch + 1)
        self.worker.position.began = perf_counter()
        train_loss = self.worker.train_epoch(*self.step_hooks(perf_counter()))
        seconds = self.worker.position.elapsed()
        samples = self.clock.samples_in_epoch
        average_buffers(self.world, self.replica)
        self.clock.end_epoch()
        self.worker.begin_epoch()
        return Trained(samples, train_loss, seconds, self.worker.stopped)

    def _make_record(self, trained: Trained) -> EpochRecord | None:
        """What became of the epoch; None if a rank is to end, and validation was given up."""
        logs: Logs | None = {}
        if self._validation_is_due(trained):
            logs = self.validate(self.world, self._is_to_quit)
        if logs is None:
            return None
        split = self.state.watch.take()
        self.events.write("time", step=self.clock.step, epoch=self.clock.epoch, **asdict(split))
        time = mean_over_ranks(self.world, split)
        samples, train_loss, seconds, _ = trained
        return self.make_record(self.clock.epoch, samples, train_loss, seconds, logs, time)

    def _is_to_quit(self) -> bool:
        deferred = self.worker.deferred
        asked = self.state.stop_requests.reason is not None
        return asked or (deferred is not None and deferred.quit)

    def _validate_last(self) -> None:
        """A run that stopped early between two validations still reports what it reached."""
        last = self.history[-1]
        if self.state.data.validation is None or last.val_loss is not None:
            return
        logs = self.validate_last()
        if not logs:
            return
        last.val_loss, last.val_accuracy = logs["val_loss"], logs["val_accuracy"]
        last.metrics = further_figures(logs)
        self.history.revise_last()
        on_rank0(self.world, self.save_history)

    def _validation_is_due(self, trained: Trained) -> bool:
        epoch = self.clock.epoch
        last = epoch == self.config.epochs or trained.stopped
        return last or epoch % self.config.validate_every == 0

    def _agree_at_end(self) -> list[bool]:
        """Whether to stop, to save, to quit: a rank may have been asked to in the last step or
        after it, after the last exchange."""
        wishes, self.worker.deferred = self.worker.deferred, None
        save = (wishes is not None and wishes.save) or self.is_due(self.clock.step)
        quit = (wishes is not None and wishes.quit) or self.state.stop_requests.reason is not None
        votes = np.array([self.state.stop_asked, save, quit], float)
        self.world.all_reduce(votes)
        return [bool(vote > 0) for vote in votes]
