"""Callbacks: what a user adds to a run, by the events people know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.training.trainer import Trainer

Logs = dict[str, float | None]


class Callback:
    """Override what you need. Every rank calls its own; look at `trainer.world.rank` for one only.

    `trainer.stop()` on any rank ends the training on all of them at the same step.
    """

    def on_train_begin(self, trainer: Trainer) -> None:
        """The replicas are equal; nothing has been trained."""

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Epochs count from 1."""

    def on_batch_begin(self, trainer: Trainer, step: int) -> None:
        """This rank has its batch; steps count from 1."""

    def on_batch_end(self, trainer: Trainer, step: int, logs: Logs) -> None:
        """The step is done; logs: loss (of this rank), samples (of the world)."""

    def on_validation_end(self, trainer: Trainer, logs: Logs) -> None:
        """logs: val_loss, val_accuracy; the same on every rank."""

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        """logs: train_loss, val_loss, val_accuracy, learning_rate, samples_per_s."""

    def on_train_end(self, trainer: Trainer) -> None:
        """The last epoch is over, or the run was stopped."""
