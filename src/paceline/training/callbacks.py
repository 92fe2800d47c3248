"""Callbacks: what a user adds to a run, by the events people know."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.checkpoint.tree import as_plain, split

if TYPE_CHECKING:
    from paceline.training.trainer import Trainer

_log = logging.getLogger("paceline.training")

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


class CallbackList:
    """The callbacks of a run: notified of its events, and saved with it."""

    def __init__(self, callbacks: Sequence[object], trainer: Trainer) -> None:
        self._callbacks, self._trainer = callbacks, trainer

    def notify(self, event: str, *details: object) -> None:
        """Call those that have a method of this name; they need not derive from Callback."""
        for callback in self._callbacks:
            function = getattr(callback, event, None)
            if function is not None:
                function(self._trainer, *details)

    def snapshot(self) -> list[object]:
        """The state of each; None for one without."""
        return [_state_of(callback) for callback in self._callbacks]

    def restore(self, saved: list[object]) -> None:
        """Give each its state back."""
        for callback, state in zip(self._callbacks, saved, strict=False):
            accept = getattr(callback, "accept_state", None)
            if accept is not None and state is not None:
                accept(state)


def _state_of(callback: object) -> object:
    """Plain values that a callback wants back, if it has any; the checkpoint omits those that no
    file can hold."""
    state = getattr(callback, "state", None)
    if not callable(state):
        return None
    try:
        plain = as_plain(state())
        split({"state": plain})
    except Exception as error:
        _log.warning(
            "the state of the callback %s is not saved: %s", type(callback).__name__, error
        )
        return None
    return plain
