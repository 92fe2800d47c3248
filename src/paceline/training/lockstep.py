"""Epochs that all ranks end together."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from paceline.observe import EpochRecord
from paceline.training.once import once
from paceline.training.run import ASKED, Run, mean_over_ranks
from paceline.training.start import average_buffers


class LockstepRun(Run):
    """The run of a synchronous rule: at the end of every epoch all ranks meet and validate."""

    def run(self) -> str | None:
        reason: str | None = None
        self.call("on_train_begin")
        while self.clock.epoch < self.config.epochs and reason is None:
            record = self._run_epoch()
            figures = self.note(record)
            once(self.world, self.save_history)
            self.call("on_epoch_end", record.epoch, figures)
            reason = ASKED if self._stop_agreed() else self.stopping.reason(figures)
        self._validate_last()
        self.end(reason)
        return reason

    def _run_epoch(self) -> EpochRecord:
        number = self.clock.epoch + 1
        self.call("on_epoch_begin", number)
        began = perf_counter()
        train_loss = self.worker.train_epoch(self.train, *self.step_hooks(began))
        seconds = perf_counter() - began
        samples = self.clock.samples_in_epoch
        self.clock.end_epoch()
        average_buffers(self.world, self.replica)
        logs = self.validate(self.world) if self._validation_is_due() else {}
        time = mean_over_ranks(self.world, self.worker.watch.take())
        return self.make_record(number, samples, train_loss, seconds, logs, time)

    def _validate_last(self) -> None:
        """A run that stopped early between two validations still tells what it reached."""
        last = self.history[-1]
        if self.validation is None or last.val_loss is not None:
            return
        logs = self.validate(self.world)
        last.val_loss, last.val_accuracy = logs["val_loss"], logs["val_accuracy"]
        once(self.world, self.save_history)

    def _validation_is_due(self) -> bool:
        epoch = self.clock.epoch
        last = epoch == self.config.epochs or self.worker.stopped
        return last or epoch % self.config.validate_every == 0

    def _stop_agreed(self) -> bool:
        """A rank may have asked in the last step or after it, when no exchange could tell."""
        votes = np.array([float(self.worker.stop_asked)])
        self.world.all_reduce(votes)
        return bool(votes[0] > 0)
