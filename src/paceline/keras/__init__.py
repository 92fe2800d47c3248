"""For those who train by `model.fit`: a callback, an optimizer that averages, and data.

    model.fit(
        paceline.keras.shard(x, y, batch_size=32),
        shuffle=False,
        epochs=5,
        callbacks=[paceline.keras.KeepPace("average", every=8)],
    )

Run the script under `paceline run -n 4 -- script.py` for 4 ranks; alone it is plain `fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np

from paceline.comm import World
from paceline.comm.rank0 import on_rank0
from paceline.core.vectors import Vector, checksum
from paceline.data import Stream, as_source, plan_steps
from paceline.data.sampling.shards import epoch_order
from paceline.errors import ConfigError, DataError, TrainingError
from paceline.frameworks.keras.backend import prepare_backend
from paceline.frameworks.threads import limit_threads
from paceline.keras.fit import FitSession
from paceline.rules import EASGD, Downpour, Rule, make_rule
from paceline.runtime.resources import fair_threads
from paceline.runtime.watchdog import watched
from paceline.runtime.world import init
from paceline.sync.replicas import start_equal as _start_equal
from paceline.training.loop.stepper import StepLimits

prepare_backend()  # Keras looks for its backend when it is imported

import keras  # noqa: E402

from paceline.frameworks.keras.callbacks import KerasCallbacks, set_rate  # noqa: E402
from paceline.frameworks.keras.loop import KerasLoop, around_apply  # noqa: E402

__all__ = ["KeepPace", "Shard", "averaged", "shard", "start_equal"]

_STALL_LIMITS_S = 30.0, 1800.0


class KeepPace(keras.callbacks.Callback):
    """Keeps the model that `fit` trains in pace with those of the other ranks, by a rule.

    `rule` is a name (bsp, average, diloco, easgd, downpour, gossip) with its settings, or a rule.
    All ranks begin with rank 0's model and optimizer. bsp averages gradients inside of each step,
    the others exchange weights after a batch when their period is over. At the end of each epoch
    ranks wait for each other, also if they have different numbers of batches; until the next one
    begins, the model is what the ranks have in common, and the figures in `logs` are means over
    all ranks. After `fit` the model is the same on every rank.

    Put it first in the list. `callbacks` run once, on rank 0, and all ranks do what they ask for:
    stop, or go on with another learning rate, or with the weights that they restored. Callbacks
    beside it run on every rank. Only rank 0 shows a progress bar.
    """

    def __init__(
        self,
        rule: str | Mapping[str, Any] | Rule = "average",
        *,
        callbacks: Sequence[Any] = (),
        max_rejected: int = 10,
        stall_warning_s: float = _STALL_LIMITS_S[0],
        stall_timeout_s: float = _STALL_LIMITS_S[1],
        world: World | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._rule = _read_rule(rule, settings)
        self._callbacks, self._world = list(callbacks), world
        self._limits = StepLimits(
            max_rejected, stall_warning_s=stall_warning_s, stall_timeout_s=stall_timeout_s
        )
        self._pace: FitSession | None = None
        self._leading: KerasCallbacks | None = None
        self._undo: list[Callable[[], None]] = []

    def set_params(self, params: Any) -> None:
        self._world = self._world or init()
        if self._world.rank and params and "verbose" in params:
            params["verbose"] = 0  # the progress bar comes later in the list, and reads the same
        super().set_params(params)

    def on_train_begin(self, logs: Any = None) -> None:
        self._clean_up()  # a fit before this one may have failed
        world, model = self._world or init(), self.model
        self._world = world
        limit_threads(fair_threads(world))
        self._loop = loop = KerasLoop(model, model.optimizer)
        self._pace = pace = FitSession(world, loop, self._rule, self._limits)
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
        self._undo += [self._listen_last(model.history), partial(_begin_shards, None)]
        self._epochs_begun = 0
        if self._callbacks and world.rank == 0:
            self._leading = KerasCallbacks(
                self._callbacks, model, epochs=self.params["epochs"], steps=self.params["steps"]
            )
        self._lead("on_train_begin")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        pace = self._current()
        if self._epochs_begun:
            pace.check_place(f"epoch {epoch + 1}")
        self._epochs_begun += 1
        _begin_shards(epoch)
        self._ended, self._seen = False, 0.0
        self._trained, self._tested = 0.0, 1.0
        pace.begin_epoch()
        self._lead("on_epoch_begin", epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._lead_batch("on_train_batch_begin", batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pace, model = self._current(), self._loop.model  # self.model would make JAX hand it over
        self._lead_batch("on_train_batch_end", batch, logs)
        samples = self._count_new()
        self._trained += samples
        if model.stop_training:
            pace.ask_to_stop()
        pace.after_batch(samples)
        if pace.stop:
            model.stop_training = True

    def on_test_begin(self, logs: Any = None) -> None:
        if self._pace is not None:
            self._end_epoch()
        if self._leading is not None:
            self._leading.call("on_test_begin", logs)

    def on_test_end(self, logs: Any = None) -> None:
        if self._pace is not None:
            self._tested = self._loop.samples_seen() or 1.0
        if self._leading is not None:
            self._leading.call("on_test_end", logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._end_epoch()
        figures = logs if logs is not None else {}
        arrays = {n: np.asarray(keras.ops.convert_to_numpy(v)) for n, v in figures.items()}
        behind = {n: self._tested if n.startswith("val_") else self._trained for n in arrays}
        means = self._current().mean(arrays, behind)
        figures.update({n: m if m.ndim else float(m) for n, m in means.items()})
        self._lead("on_epoch_end", epoch, figures)

    def on_train_end(self, logs: Any = None) -> None:
        pace = self._current()
        pace.check_place("the end")
        pace.leave()
        self._lead("on_train_end", logs)
        if self._callbacks:
            pace.take_over()
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

    def _lead(self, event: str, *details: Any) -> None:
        """Let rank 0 run its callbacks, and all ranks do what they ask for."""
        if not self._callbacks:
            return
        world, leading, model = self._current().world, self._leading, self._loop.model

        def run() -> tuple[bool, float | None]:
            assert leading is not None, "only rank 0 leads"
            before = checksum(self._loop.parameters())
            leading.call(event, *details)
            changed = checksum(self._loop.parameters()) != before
            if changed and event != "on_train_end" and world.size > 1:
                raise TrainingError(
                    f"a callback has changed the model's weights in {event}, on rank 0 alone; "
                    "while it trains only the rule may do that. Load weights before fit"
                )
            return leading.wishes()

        with self._current().watched():
            stop, rate = on_rank0(world, run)
        model.stop_training = stop or bool(model.stop_training)
        set_rate(model.optimizer, rate)
        self._rate = rate

    def _lead_batch(self, event: str, *details: Any) -> None:
        """Single batches are rank 0's own: there nobody could follow it to another rate."""
        leading = self._leading
        if leading is None or not leading.looks_at_batches:
            return
        leading.call(event, *details)
        if not self._loop.is_attached or self._current().world.size == 1:
            return
        _, rate = leading.wishes()
        if rate != self._rate:
            raise TrainingError(
                f"a callback has set the learning rate from {self._rate} to {rate} in {event}, on "
                "rank 0 alone; set it at an epoch's beginning or end, or put the callback beside "
                "KeepPace, where every rank runs it"
            )

    def _listen_last(self, history: Any) -> Callable[[], None]:
        """Keras' History comes after all callbacks of the user: there ranks agree whether to stop,
        whoever of them asked for it."""
        plain, model = history.on_epoch_end, self._loop.model

        def on_epoch_end(epoch: int, logs: Any = None) -> None:
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


def averaged(optimizer: Any, world: World | None = None) -> Any:
    """The optimizer, which from now on averages the gradients of all ranks before each step.

    Ranks count alike, whatever their batches, and must take the same number of steps; KeepPace
    with rule bsp weighs by samples and needs no such care. All ranks must begin with the same
    weights: see `start_equal`. With TensorFlow, compile the model with jit_compile=False.
    """
    optimizer = keras.optimizers.get(optimizer)
    world = world or init()
    if world.size > 1:
        around_apply(optimizer, partial(_average, world))
    return optimizer


def _average(world: World, gradients: list[Vector | None], samples: float) -> list[Vector | None]:
    there = [gradient for gradient in gradients if gradient is not None]
    flat = np.concatenate([gradient.reshape(-1) for gradient in there]).astype(np.float32)
    with watched(lambda: (0, 0), *_STALL_LIMITS_S):  # perhaps in a thread of the backend's
        world.all_reduce(flat)
    flat /= world.size
    ends = np.cumsum([gradient.size for gradient in there])[:-1]
    means = iter(np.split(flat, ends))
    return [g if g is None else next(means).reshape(g.shape) for g in gradients]


def start_equal(model: Any, world: World | None = None) -> None:
    """Give the compiled model rank 0's weights, on every rank."""
    loop = KerasLoop(model, model.optimizer)
    _start_equal(world or init(), loop)
    loop.release()


class ShardedBatches(keras.utils.PyDataset):
    """This rank's share of the data, in batches; made by `shard`."""

    def __init__(
        self, data: Any, batch_size: int, seed: int, shuffle: bool, world: World | None
    ) -> None:
        super().__init__()
        world = world or init()
        source = as_source(data)
        if isinstance(source, Stream):
            raise DataError(
                f"{source.name} has no length, so it cannot be dealt by number; give arrays or "
                "files, or train with paceline.Trainer"
            )
        self._source, self._rank = source, world.rank
        self._seed, self._shuffle = seed, shuffle
        self._plan = plan_steps(len(source), world.size, batch_size)
        self._epoch, self._led = -1, False
        self._order = epoch_order(len(source), seed, 0, shuffle)
        _shards.add(self)

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        return len(self._plan)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        begin, end = self._plan.bounds(index, self._rank)
        batch = self._source.take(self._order[begin:end])
        return (batch.inputs,) if batch.targets is None else (batch.inputs, batch.targets)

    def begin(self, epoch: int | None) -> None:
        """Deal for this epoch, until the next call. None: count the epochs here again.

        Keras takes a first batch to build a model, and that looks like an epoch. KeepPace tells
        which one it is, the same on all ranks.
        """
        self._led = epoch is not None
        if epoch is not None:
            self._deal(epoch)

    def on_epoch_begin(self) -> None:
        if not self._led:
            self._deal(self._epoch + 1)

    def _deal(self, epoch: int) -> None:
        self._epoch = epoch
        self._order = epoch_order(len(self._source), self._seed, epoch, self._shuffle)


def _begin_shards(epoch: int | None) -> None:
    for each in list(_shards):
        each.begin(epoch)


_shards: WeakSet[ShardedBatches] = WeakSet()
"""Those that are alive: `fit` does not tell its callbacks on what it trains."""


def shard(
    x: Any,
    y: Any = None,
    *,
    batch_size: int = 32,
    seed: int = 1,
    shuffle: bool = True,
    world: World | None = None,
) -> ShardedBatches:
    """This rank's share of arrays, for `fit`: every sample on one rank, once per epoch.

    `batch_size` is per rank. Samples are dealt anew in every epoch of a `fit` with KeepPace, by
    `seed` and the epoch's number, alike on all ranks; so say `fit(..., shuffle=False)`, or Keras
    also changes the order of the batches.
    """
    return ShardedBatches(x if y is None else (x, y), batch_size, seed, shuffle, world)


def _read_rule(rule: str | Mapping[str, Any] | Rule, settings: Mapping[str, Any]) -> Rule:
    if settings and not isinstance(rule, str):
        raise TypeError("KeepPace takes a rule, or its name with settings, not both")
    made = make_rule({"name": rule, **settings} if isinstance(rule, str) else rule)
    servers = getattr(made, "servers", 0)
    if servers:
        raise ConfigError(
            f"rule.servers is {servers}, but in model.fit every rank trains; leave it out"
        )
    if isinstance(made, EASGD | Downpour):
        return replace(made, servers=0)
    return made
