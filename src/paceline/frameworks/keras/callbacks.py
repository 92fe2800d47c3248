"""Keras callbacks that run on one rank, and what they ask of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from paceline.frameworks.keras.vectors import read

_SETTERS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


class KerasCallbacks:
    """A list of callbacks that receives Keras' events."""

    def __init__(self, callbacks: Sequence[Any], model: Any, *, epochs: int, steps: int | None):
        self._model = model
        self._list = keras.callbacks.CallbackList(
            list(callbacks), model=model, epochs=epochs, steps=steps, verbose=0
        )
        self.looks_at_batches = any(_overrides(callback) for callback in callbacks)
        """Whether some callback acts on single batches."""

    def call(self, event: str, *details: Any) -> None:
        """Notify the callbacks of an event by its name in Keras."""
        getattr(self._list, event)(*details)

    def wishes(self) -> tuple[bool, float | None]:
        """Whether they want training to stop, and the learning rate that they set."""
        return bool(self._model.stop_training), find_rate(self._model.optimizer)


def find_rate(optimizer: Any) -> float | None:
    """The learning rate, if it is a number that can be set, not a schedule."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(inner, "_learning_rate", None)
    return float(read(rate)) if isinstance(rate, keras.Variable) else None


def set_rate(optimizer: Any, rate: float | None) -> None:
    """Set this learning rate, if it differs."""
    if rate is not None and find_rate(optimizer) != rate:
        optimizer.learning_rate = rate


def _overrides(callback: Any) -> bool:
    """Whether a callback acts on single batches."""
    plain = keras.callbacks.Callback
    own = (getattr(type(callback), name, None) for name in _SETTERS)
    base = [getattr(plain, name) for name in _SETTERS]
    changed = any(method not in base for method in own if method is not None)
    return changed or any(name in vars(callback) for name in _SETTERS)
