"""The callback that keeps a model which `fit` trains in pace with those of the other ranks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import keras
import numpy as np

from paceline.comm import World
from paceline.errors import ConfigError
from paceline.frameworks.keras.callbacks import KerasCallbacks
from paceline.frameworks.keras.loop import KerasLoop
from paceline.frameworks.threads import limit_threads
from paceline.keras.batches import begin_shards
from paceline.keras.fit import FitSession
from paceline.keras.mistakes import warn_of_mistakes
from paceline.rules import Rule, make_rule
from paceline.runtime.resources import fair_threads
from paceline.runtime.world import init
from paceline.sync.settings import ExchangeSettings, check_settings, make_settings
from paceline.training.keras_callbacks import Advice, RankZeroCallbacks
from paceline.training.loop.stepper import StepLimits

_log = logging.getLogger("paceline.keras")

_ADVICE = Advice(
    weights="Load weights before fit",
    rate="put the callback beside KeepPace, where every rank runs it",
)

_Logs = dict[str, object] | None
"""What Keras tells its callbacks."""


class KeepPace(keras.callbacks.Callback):
    """Keeps the model that `fit` trains in pace with those of the other ranks, by a rule.

    `rule` is a name (bsp, average, diloco, easgd, downpour, gossip) with its settings, or a rule;
    `exchange` says how ranks exchange (`{"wire": "bfloat16"}`). All ranks begin with rank 0's model
    and optimizer. bsp averages gradients inside of each step, the others exchange weights after a
    batch when their period is over. At the end of each epoch ranks wait for each other, also if
    they have different numbers of batches; until the next one begins, the model is what the ranks
    have in common, and the figures in `logs` are means over all ranks. After `fit` the model is the
    same on every rank.

    Put it first in the list. `callbacks` run once, on rank 0, and all ranks do what they ask for:
    stop, or go on with another learning rate, or with the weights that they restored. Callbacks
    beside it run on every rank. Only rank 0 shows a progress bar.
    """

    def __init__(
        self,
        rule: str | Mapping[str, object] | Rule = "average",
        *,
        exchange: Mapping[str, object] | ExchangeSettings | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        max_rejected: int = 10,
        stall_warning_s: float = 30.0,
        stall_timeout_s: float = 1800.0,
        world: World | None = None,
        **settings: object,
    ) -> None:
        super().__init__()
        self._rule = make_rule(rule, **settings)
        self._settings = _read_exchange(exchange, self._rule)
        self._callbacks, self._world = list(callbacks), world
        self._limits = StepLimits(
            max_rejected, stall_warning_s=stall_warning_s, stall_timeout_s=stall_timeout_s
        )
        self._pace: FitSession | None = None
        self._leading: RankZeroCallbacks | None = None
        self._undo: list[Callable[[], None]] = []

    def set_params(self, params: dict[str, object] | None) -> None:
        self._world = self._world or init()
        if self._world.rank and params and "verbose" in params:
            params["verbose"] = 0  # the progress bar comes later in the list, and reads the same
        super().set_params(params)

    def on_train_begin(self, logs: _Logs = None) -> None:
        self._clean_up()  # a fit before this one may have failed
        world, model = self._world or init(), self.model
        self._world = world
        limit_threads(fair_threads(world))
        if world.elastic and world.size > 1 and world.rank == 0:
            _log.warning(
                "a rank that is lost ends model.fit, with --elastic, too: `paceline run --restarts "
                "3` starts all ranks again"
            )
        self._loop = loop = KerasLoop(model, model.optimizer)
        self._pace = pace = FitSession(world, loop, self._rule, self._settings, self._limits)
        if pace.averages_gradients:
            self._undo.append(loop.around_gradients(pace.average_gradients))
        elif loop.averages_already and world.size > 1:
            raise ConfigError(
                f"the optimizer averages gradients (paceline.keras.averaged), and rule "
                f"{self._rule.name} exchanges weights; leave one of them"
            )
        elif getattr(model.optimizer, "use_ema", False) and world.size > 1:
            raise ConfigError(
                "the optimizer has use_ema=True, and each rank would end with a mean over weights "
                f"of its own by rule {self._rule.name}; leave it out, or use rule bsp"
            )
        self._undo += [self._listen_last(model.history), partial(begin_shards, None)]
        self._epochs_begun = 0
        warn_of_mistakes(world, self, inspect.currentframe())
        if self._callbacks:
            epochs, steps = self.params["epochs"], self.params["steps"]
            make = partial(KerasCallbacks, self._callbacks, model, epochs=epochs, steps=steps)
            self._leading = RankZeroCallbacks(make, world, loop, _ADVICE)
        self._lead("on_train_begin")

    def on_epoch_begin(self, epoch: int, logs: _Logs = None) -> None:
        pace = self._current()
        if self._epochs_begun:
            pace.check_place(f"epoch {epoch + 1}")
        self._epochs_begun += 1
        begin_shards(epoch)
        self._ended, self._seen = False, 0.0
        self._trained, self._tested = 0.0, 1.0
        pace.begin_epoch()
        self._lead("on_epoch_begin", epoch)

    def on_train_batch_begin(self, batch: int, logs: _Logs = None) -> None:
        self._lead_batch("on_train_batch_begin", batch, logs)

    def on_train_batch_end(self, batch: int, logs: _Logs = None) -> None:
        pace, model = self._current(), self._loop.model  # self.model would make JAX hand it over
        self._lead_batch("on_train_batch_end", batch, logs)
        samples = self._count_new()
        self._trained += samples
        if model.stop_training:
            pace.ask_to_stop()
        pace.after_batch(samples)
        if pace.stop:
            model.stop_training = True

    def on_test_begin(self, logs: _Logs = None) -> None:
        if self._pace is not None:
            self._end_epoch()
        self._lead_test("on_test_begin", logs)

    def on_test_end(self, logs: _Logs = None) -> None:
        if self._pace is not None:
            self._tested = self._loop.samples_seen() or 1.0
        self._lead_test("on_test_end", logs)

    def on_epoch_end(self, epoch: int, logs: _Logs = None) -> None:
        self._end_epoch()
        figures = logs if logs is not None else {}
        arrays = {n: np.asarray(keras.ops.convert_to_numpy(v)) for n, v in figures.items()}
        behind = {n: self._tested if n.startswith("val_") else self._trained for n in arrays}
        means = self._current().mean(arrays, behind)
        figures.update({n: m if m.ndim else float(m) for n, m in means.items()})
        self._lead("on_epoch_end", epoch, figures)

    def on_train_end(self, logs: _Logs = None) -> None:
        pace = self._current()
        pace.check_place("the end")
        pace.leave()
        if self._leading is not None:
            with pace.watched():
                self._leading.end(logs)
        self._loop.release()
        self._pace = None
        self._clean_up()

    def _end_epoch(self) -> None:
        """Once, before the validation if there is one."""
        if not self._ended:
            self._ended = True
            self._current().end_epoch()

    def _count_new(self) -> float:
        """Samples since the last batch ended; each batch counts as one if nobody counts them."""
        seen = self._loop.samples_seen()
        if seen is None:
            return 1.0
        new, self._seen = seen - self._seen, seen
        return new if new > 0 else seen

    def _lead(self, event: str, *details: object) -> None:
        """Let rank 0 run its callbacks, and all ranks do what they ask for."""
        if self._leading is not None:
            with self._current().watched():
                stop = self._leading.lead(event, *details)
            model = self._loop.model
            model.stop_training = stop or bool(model.stop_training)

    def _lead_batch(self, event: str, *details: object) -> None:
        if self._leading is not None:
            self._leading.lead_batch(event, *details, attached=lambda: self._loop.is_attached)

    def _lead_test(self, event: str, logs: _Logs) -> None:
        if self._leading is not None:
            self._leading.notify(event, logs)

    def _listen_last(self, history: keras.callbacks.History) -> Callable[[], None]:
        """Keras' History comes after all callbacks of the user: there ranks agree whether to stop,
        whoever of them asked for it."""
        plain, model = history.on_epoch_end, self._loop.model

        def on_epoch_end(epoch: int, logs: _Logs = None) -> None:
            plain(epoch, logs)
            last = epoch + 1 >= self.params["epochs"]
            if self._current().agree(last or bool(model.stop_training)) and not last:
                model.stop_training = True

        vars(history)["on_epoch_end"] = on_epoch_end
        return partial(vars(history).pop, "on_epoch_end", None)

    def _current(self) -> FitSession:
        assert self._pace is not None, "Keras calls on_train_begin first"
        return self._pace

    def _clean_up(self) -> None:
        if self._pace is not None:
            self._pace.abandon()
        for undo in self._undo:
            undo()
        self._pace, self._leading, self._undo = None, None, []


def _read_exchange(
    given: Mapping[str, object] | ExchangeSettings | None, rule: Rule
) -> ExchangeSettings:
    """In `fit` every rank trains, and on parameters of its own."""
    settings = make_settings(given)
    check_settings(rule, settings)
    if settings.servers:
        raise ConfigError(
            f"exchange.servers is {settings.servers}, but in model.fit every rank trains; omit it"
        )
    kind = rule.resolve(lossy=settings.lossy).exchange_kind
    if kind == "centre":
        return replace(settings, servers=0)
    return replace(settings, share=False) if kind == "gradients" else settings
