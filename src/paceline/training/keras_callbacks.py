"""Callbacks of Keras in a run of the Trainer: once, on rank 0, and all ranks do what they ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.comm import Pending, World, wait_until
from paceline.comm.rank0 import on_rank0
from paceline.core.vectors import Vector, checksum
from paceline.errors import ConfigError, TrainingError
from paceline.sync import next_exchange_id, with_common_weights
from paceline.sync.parameter_server.make import message_tags
from paceline.training.callbacks import Callback, Logs

if TYPE_CHECKING:
    from paceline.training.trainer import Trainer

_BASE = "keras.src.callbacks.callback.Callback"


def adapt_callbacks(callbacks: Sequence[Any]) -> list[Any]:
    """The callbacks as a Trainer calls them; those of Keras come together in one of ours, at the
    place of the first of them."""
    led = [callback for callback in callbacks if _is_of_keras(callback)]
    if not led:
        return list(callbacks)
    together = LedCallbacks(led)
    return [
        together if callback is led[0] else callback
        for callback in callbacks
        if callback is led[0] or not _is_of_keras(callback)
    ]


def _is_of_keras(callback: Any) -> bool:
    kinds = type(callback).__mro__
    return any(f"{kind.__module__}.{kind.__qualname__}" == _BASE for kind in kinds)


class LedCallbacks(Callback):
    """Tells callbacks of Keras, on rank 0, what happens in the run, by Keras' events and words.

    They see the rule's centre where it has one. A wish to stop is the Trainer's. A learning rate
    that they set is in force on all ranks: in lock step from the next epoch on, where workers go at
    their own pace as soon as the news is there. Weights that they put into the model when the
    training ends are the result.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = list(callbacks)
        self._led: Any = None
        self._news: RateNews | None = None

    def on_train_begin(self, trainer: Trainer) -> None:
        world, replica = trainer.world, trainer.replica
        model: Any = getattr(replica, "model", None)
        if not any(kind.__module__.startswith("keras.") for kind in type(model).__mro__):
            raise ConfigError(
                f"{type(self._callbacks[0]).__name__} is a callback of Keras, and the model is "
                "none; derive from paceline.Callback instead"
            )
        self._model, self._batch = model, 0
        optimizer = vars(replica)["optimizer"]
        if getattr(model, "optimizer", None) is not optimizer:
            model.optimizer = optimizer  # the replica compiles the model at its first batch
        model.stop_training = False
        if trainer._exchange.asynchronous:
            self._news = RateNews(world)
        if world.rank == 0:
            from paceline.frameworks.keras.callbacks import KerasCallbacks

            epochs, steps = trainer.config.epochs, _steps_per_epoch(trainer)
            self._led = KerasCallbacks(self._callbacks, model, epochs=epochs, steps=steps)
        self._lead(trainer, "on_train_begin")

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        self._batch = 0
        self._lead(trainer, "on_epoch_begin", epoch - 1)

    def on_batch_begin(self, trainer: Trainer, step: int) -> None:
        if self._news is not None:
            self._use_rate(self._news.latest())
        if self._led is not None and self._led.looks_at_batches:
            self._watch_rate(trainer, "on_train_batch_begin", self._batch)

    def on_batch_end(self, trainer: Trainer, step: int, logs: Logs) -> None:
        if self._led is not None and self._led.looks_at_batches:
            figures = {"loss": logs["loss"]} if logs["loss"] is not None else {}
            self._watch_rate(trainer, "on_train_batch_end", self._batch, figures)
        self._batch += 1

    def on_validation_end(self, trainer: Trainer, logs: Logs) -> None:
        if self._led is not None:
            figures = {n.removeprefix("val_"): v for n, v in logs.items() if v is not None}
            self._led.call("on_test_begin")
            self._led.call("on_test_end", figures)

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        figures = {n: v for n, v in logs.items() if v is not None and n != "samples_per_s"}
        if "train_loss" in figures:
            figures = {"loss": figures.pop("train_loss"), **figures}
        self._lead(trainer, "on_epoch_end", epoch - 1, figures)

    def on_train_end(self, trainer: Trainer) -> None:
        world, replica = trainer.world, trainer.replica
        if self._news is not None:
            self._use_rate(self._news.close())
        on_rank0(world, lambda: self._led.call("on_train_end"))
        for vector, accept in (
            (replica.parameters(), replica.accept_parameters),
            (replica.buffers(), replica.accept_buffers),
        ):
            if vector.size:
                world.broadcast(vector)
                accept()

    def _lead(self, trainer: Trainer, event: str, *details: Any) -> None:
        """Rank 0 tells its callbacks of an event; then all do what they ask for."""

        def run() -> float | None:
            with _untouched(trainer, event):
                self._led.call(event, *details)
            stop, rate = self._led.wishes()
            if stop:
                trainer.stop()
            return rate  # type: ignore[no-any-return]

        if self._news is None:
            self._use_rate(on_rank0(trainer.world, run))
        elif trainer.world.rank == 0:
            self._news.send(run())

    def _use_rate(self, rate: float | None) -> None:
        from paceline.frameworks.keras.callbacks import set_rate

        set_rate(self._model.optimizer, rate)

    def _watch_rate(self, trainer: Trainer, event: str, *details: Any) -> None:
        """Single batches are rank 0's own: there nobody else could follow it to another rate."""
        _, before = self._led.wishes()
        self._led.call(event, *details)
        stop, rate = self._led.wishes()
        if rate != before and trainer.world.size > 1:
            raise TrainingError(
                f"a callback of Keras has set the learning rate from {before} to {rate} in "
                f"{event}, on rank 0 alone; set it at the end or beginning of an epoch, or use the "
                "setting `schedule`"
            )
        if stop:
            trainer.stop()


@contextmanager
def _untouched(trainer: Trainer, event: str) -> Iterator[None]:
    """Inside, the model is the rule's centre, and nobody changes it."""
    replica = trainer.replica
    with with_common_weights(replica, trainer._exchange):
        before = checksum(replica.parameters())
        yield
        if checksum(replica.parameters()) != before and trainer.world.size > 1:
            raise TrainingError(
                f"a callback of Keras has changed the model's weights in {event}; while it trains "
                "only the rule may do that. To go on with saved weights use the setting `resume`"
            )


def _steps_per_epoch(trainer: Trainer) -> int | None:
    """Of one rank; None if nobody knows how many samples there are."""
    samples, config = trainer.clock.samples_per_epoch, trainer.config
    batch = config.data.batch_size * config.accumulate * trainer.world.size
    return None if samples is None else -(-samples // batch)


class RateNews:
    """The learning rate, from rank 0 to all others, who look for it between two steps.

    All ranks make it together, and close it together.
    """

    def __init__(self, world: World) -> None:
        self._world, self._tag = world, message_tags(next_exchange_id(world))[0]
        self._sent: list[tuple[Vector, Pending]] = []
        self._last: float | None = None
        self._room, self._heard = np.empty(1), 0
        self._coming = self._post() if world.rank else None

    def send(self, rate: float | None) -> None:
        """Tell all others, if it is another one."""
        if rate is None or rate == self._last:
            return
        self._last = rate
        for rank in range(1, self._world.size):
            told = np.array([rate])
            self._sent.append((told, self._world.isend(told, rank, self._tag)))

    def latest(self) -> float | None:
        """The last rate that has come; None if none has come since the last call."""
        rate = None
        while self._coming is not None and self._coming.done():
            rate = float(self._room[0])
            self._heard += 1
            self._coming = self._post()
        return rate

    def close(self) -> float | None:
        """Take in what is under way: the last rate, None if none has come since `latest`."""
        told = self._world.bcast_value(len(self._sent) // max(1, self._world.size - 1))
        rates: list[float | None] = [None]

        def have_arrived() -> bool:
            if not self._world.rank:
                return all(pending.done() for _, pending in self._sent)
            rates[0] = self.latest() or rates[0]
            return self._heard == told

        wait_until(have_arrived)
        if self._coming is not None:
            self._coming.cancel()
        return rates[0]

    def _post(self) -> Pending:
        return self._world.irecv(self._room, 0, self._tag)
