"""Callbacks of Keras run once, on rank 0, and all ranks do what they ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from paceline.comm import Pending, World, wait_until
from paceline.comm.rank0 import on_rank0
from paceline.core.vectors import Vector, checksum
from paceline.errors import ConfigError, TrainingError
from paceline.frameworks.replica import VectorModel
from paceline.sync.make import next_exchange_id, with_common_weights
from paceline.sync.parameter_server.spec import message_tags
from paceline.training.callbacks import Callback, Logs

if TYPE_CHECKING:
    from paceline.frameworks.keras.callbacks import KerasCallbacks
    from paceline.training.trainer import Trainer

_BASE = "keras.src.callbacks.callback.Callback"


def adapt_callbacks(callbacks: Sequence[object]) -> list[object]:
    """The callbacks as a Trainer calls them; those of Keras come together in one of ours, at the
    place of the first of them."""
    of_keras = [callback for callback in callbacks if _is_of_keras(callback)]
    if not of_keras:
        return list(callbacks)
    together = KerasAdapter(of_keras)
    return [
        together if callback is of_keras[0] else callback
        for callback in callbacks
        if callback is of_keras[0] or not _is_of_keras(callback)
    ]


def _is_of_keras(callback: object) -> bool:
    kinds = type(callback).__mro__
    return any(f"{kind.__module__}.{kind.__qualname__}" == _BASE for kind in kinds)


class Advice(NamedTuple):
    """What to do instead of what only rank 0 would do; it depends on who trains."""

    weights: str
    """To train on from other weights."""
    rate: str
    """To set the learning rate for single batches."""


@runtime_checkable
class KerasVectorModel(VectorModel, Protocol):
    """A model of Keras as vectors."""

    model: Any


class RankZeroCallbacks:
    """Callbacks of Keras that run once, on rank 0; all ranks do what they ask for.

    All ranks make one, and call `lead` and `end` together. `make` makes them on rank 0, and inside
    `showing` the replica has the weights that they are to see.
    """

    def __init__(
        self,
        make: Callable[[], KerasCallbacks],
        world: World,
        replica: KerasVectorModel,
        advice: Advice,
        showing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._world, self._replica, self._advice = world, replica, advice
        self._showing = showing
        self._list = make() if world.rank == 0 else None
        self._rate: float | None = None

    def notify(self, event: str, *details: object) -> None:
        """Of an event after which the other ranks have nothing to do."""
        if self._list is not None:
            self._list.call(event, *details)

    def run(self, event: str, *details: object) -> tuple[bool, float | None]:
        """On rank 0: whether they want to stop, and the learning rate that they leave."""
        assert self._list is not None, "only rank 0 has callbacks"
        with self._showing():
            before = checksum(self._replica.parameters())
            self._list.call(event, *details)
            changed = checksum(self._replica.parameters()) != before
        if changed and self._world.size > 1:
            raise TrainingError(
                f"a callback of Keras has changed the model's weights in {event}, on rank 0 alone; "
                f"while it trains only the rule may do that. {self._advice.weights}"
            )
        return self._list.wishes()

    def lead(self, event: str, *details: object) -> bool:
        """Of an event on all ranks: use the rate that they leave; whether they want to stop."""
        stop, self._rate = on_rank0(self._world, lambda: self.run(event, *details))
        self.use_rate(self._rate)
        return stop

    def use_rate(self, rate: float | None) -> None:
        """Go on with this learning rate, on this rank; None: as before."""
        from paceline.frameworks.keras.callbacks import set_rate

        set_rate(self._replica.model.optimizer, rate)

    def lead_batch(
        self, event: str, *details: object, attached: Callable[[], bool] = lambda: True
    ) -> bool:
        """Of an event of a single batch, which is rank 0's own: nobody else could follow it to
        another rate. Whether they want to stop.

        `attached` says whether the model has its variables, which JAX may keep outside.
        """
        if self._list is None or not self._list.looks_at_batches:
            return False
        before = self._list.wishes()[1] if attached() else self._rate
        self._list.call(event, *details)
        if not attached():
            return False
        stop, rate = self._list.wishes()
        if rate != before and self._world.size > 1:
            raise TrainingError(
                f"a callback of Keras has set the learning rate from {before} to {rate} in "
                f"{event}, on rank 0 alone; set it at the beginning or end of an epoch, or "
                f"{self._advice.rate}"
            )
        return stop

    def end(self, *details: object) -> None:
        """The training has ended: every rank's model becomes what they make of rank 0's."""

        def run() -> float | None:
            assert self._list is not None, "only rank 0 has callbacks"
            self._list.call("on_train_end", *details)
            return self._list.wishes()[1]

        self.use_rate(on_rank0(self._world, run))
        replica = self._replica
        for vector, accept in (
            (replica.parameters(), replica.accept_parameters),
            (replica.buffers(), replica.accept_buffers),
        ):
            if vector.size:
                self._world.broadcast(vector)
                accept()


_ADVICE = Advice(
    weights="To go on with saved weights use the setting `resume`",
    rate="use the setting `schedule`",
)


def _is_keras_model(model: object) -> bool:
    return any(kind.__module__.startswith("keras.") for kind in type(model).__mro__)


class KerasAdapter(Callback):
    """Tells callbacks of Keras, on rank 0, what happens in a Trainer's run, by Keras' events.

    They see the rule's centre where it has one. A wish to stop is the Trainer's. A learning rate
    that they set is in force on all ranks: by a synchronous rule from the next epoch on, by an
    asynchronous one as soon as it has arrived. Weights that they put into the model when the
    training ends are the result.
    """

    def __init__(self, callbacks: Sequence[object]) -> None:
        self._callbacks = list(callbacks)
        self._rates: RateBroadcast | None = None

    def on_train_begin(self, trainer: Trainer) -> None:
        world, replica = trainer.world, trainer.replica
        if not isinstance(replica, KerasVectorModel) or not _is_keras_model(replica.model):
            raise ConfigError(
                f"{type(self._callbacks[0]).__name__} is a callback of Keras, and the model is "
                "none; derive from paceline.Callback instead"
            )
        from paceline.frameworks.keras.callbacks import KerasCallbacks

        model, optimizer = replica.model, vars(replica)["optimizer"]
        if getattr(model, "optimizer", None) is not optimizer:
            model.optimizer = optimizer  # the replica compiles the model at its first batch
        model.stop_training = False
        if trainer._exchange.asynchronous:
            self._rates = RateBroadcast(world)
        epochs, steps = trainer.config.epochs, _steps_per_epoch(trainer)
        make = partial(KerasCallbacks, self._callbacks, model, epochs=epochs, steps=steps)
        showing = partial(with_common_weights, replica, trainer._exchange)
        self._leading = RankZeroCallbacks(make, world, replica, _ADVICE, showing)
        self._batch = 0
        self._lead(trainer, "on_train_begin")

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        self._batch = 0
        self._lead(trainer, "on_epoch_begin", epoch - 1)

    def on_batch_begin(self, trainer: Trainer, step: int) -> None:
        if self._rates is not None:
            self._leading.use_rate(self._rates.latest())
        self._lead_batch(trainer, "on_train_batch_begin", self._batch)

    def on_batch_end(self, trainer: Trainer, step: int, logs: Logs) -> None:
        figures = {"loss": logs["loss"]} if logs["loss"] is not None else {}
        self._lead_batch(trainer, "on_train_batch_end", self._batch, figures)
        self._batch += 1

    def on_validation_end(self, trainer: Trainer, logs: Logs) -> None:
        figures = {n.removeprefix("val_"): v for n, v in logs.items() if v is not None}
        self._leading.notify("on_test_begin")
        self._leading.notify("on_test_end", figures)

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        figures = {n: v for n, v in logs.items() if v is not None and n != "samples_per_s"}
        if "train_loss" in figures:
            figures = {"loss": figures.pop("train_loss"), **figures}
        self._lead(trainer, "on_epoch_end", epoch - 1, figures)

    def on_train_end(self, trainer: Trainer) -> None:
        if self._rates is not None:
            self._leading.use_rate(self._rates.close())
        self._leading.end()

    def _lead(self, trainer: Trainer, event: str, *details: object) -> None:
        """Rank 0's callbacks hear of an event; then all ranks do what they ask for."""
        stop = False
        if self._rates is None:
            stop = self._leading.lead(event, *details)
        elif trainer.world.rank == 0:
            stop, rate = self._leading.run(event, *details)
            self._rates.send(rate)
        if stop and trainer.world.rank == 0:
            trainer.stop()

    def _lead_batch(self, trainer: Trainer, event: str, *details: object) -> None:
        if self._leading.lead_batch(event, *details):
            trainer.stop()


def _steps_per_epoch(trainer: Trainer) -> int | None:
    """Of one rank; None if nobody knows how many samples there are."""
    samples, config = trainer.clock.samples_per_epoch, trainer.config
    batch = config.data.batch_size * config.accumulate * trainer.world.size
    return None if samples is None else -(-samples // batch)


class RateBroadcast:
    """The learning rate, from rank 0 to all others, which look for it between two steps.

    All ranks make it together, and close it together.
    """

    def __init__(self, world: World) -> None:
        self._world, self._tag = world, message_tags(next_exchange_id(world))[0]
        self._sent: list[tuple[Vector, Pending]] = []
        self._last: float | None = None
        self._buffer, self._received = np.empty(1), 0
        self._pending = self._post() if world.rank else None

    def send(self, rate: float | None) -> None:
        """Send it to all others, if it has changed."""
        if rate is None or rate == self._last:
            return
        self._last = rate
        for rank in range(1, self._world.size):
            message = np.array([rate])
            self._sent.append((message, self._world.isend(message, rank, self._tag)))

    def latest(self) -> float | None:
        """The last rate that has arrived; None if none has since the last call."""
        rate = None
        while self._pending is not None and self._pending.done():
            rate = float(self._buffer[0])
            self._received += 1
            self._pending = self._post()
        return rate

    def close(self) -> float | None:
        """Receive what is under way: the last rate, None if none has arrived since `latest`."""
        sent = self._world.bcast_value(len(self._sent) // max(1, self._world.size - 1))
        rates: list[float | None] = [None]

        def have_arrived() -> bool:
            if not self._world.rank:
                return all(pending.done() for _, pending in self._sent)
            rates[0] = self.latest() or rates[0]
            return self._received == sent

        wait_until(have_arrived)
        if self._pending is not None:
            self._pending.cancel()
        return rates[0]

    def _post(self) -> Pending:
        return self._world.irecv(self._buffer, 0, self._tag)
