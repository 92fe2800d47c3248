"""The Trainer: joins model, data, rule and world, and trains."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.comm import World
from paceline.data import Stream
from paceline.errors import ConfigError, OutputError
from paceline.frameworks import seed_generators
from paceline.launch.world import init, together
from paceline.observe import (
    EpochRecord,
    EventLog,
    History,
    Stopwatch,
    TimeSplit,
    make_progress,
    setup_logging,
)
from paceline.training.build import build_replica
from paceline.training.callbacks import Callback, Logs
from paceline.training.clock import Clock
from paceline.training.config import RunConfig, read_config
from paceline.training.datasets import open_datasets
from paceline.training.exchange import at_centre, make_exchange, show_centre
from paceline.training.once import once
from paceline.training.rundir import make_run_dir, summarise, write_json
from paceline.training.start import average_buffers, start_equal
from paceline.training.stopping import Stopping
from paceline.training.validation import validate
from paceline.training.worker import Worker


@dataclass(frozen=True)
class Result:
    """What a run gave."""

    model: Any
    """The trained model, the same on every rank."""
    history: History
    summary: dict[str, Any]
    run_dir: Path


class Trainer:
    """Trains one model on all ranks of the world.

        result = Trainer("mnist", "digits", epochs=3, data={"batch_size": 32}).fit()

    Every keyword is a setting of the run, as in a YAML file (see RunConfig): `rule`, `optimizer`,
    `schedule`, `loss`, `epochs`, `seed`, `stop`, ... A `config` may be given instead of them.
    Run the same script under `paceline run -n 4 -- script.py` for 4 ranks.
    """

    def __init__(
        self,
        model: Any = None,
        train: Any = None,
        validation: Any = None,
        *,
        callbacks: Sequence[Callback] = (),
        config: RunConfig | None = None,
        world: World | None = None,
        **settings: Any,
    ) -> None:
        data = {"train": train, "validation": validation}
        given = {key: value for key, value in data.items() if value is not None}
        layers = [{"model": model} if model is not None else {}, settings, {"data": given}]
        if config is not None and (model is not None or given or settings):
            raise TypeError("Trainer takes a config or single settings, not both")
        self.config = config or read_config(*layers)
        self.callbacks = list(callbacks)
        self._given_world = world
        self._worker: Worker | None = None

    def stop(self) -> None:
        """Ask all ranks to stop after the next step; any one rank may ask."""
        if self._worker is not None:
            self._worker.stop_asked = True

    def fit(self) -> Result:
        """Train to the last epoch, or to an early stop."""
        self.world = self._given_world or init()
        with together(self.world):
            return self._fit()

    def _fit(self) -> Result:
        config, world = self.config, self.world
        self.clock, self.history = Clock(), History()
        setup_logging(world.rank, world.size)
        seed_generators(config.seed)  # functions that make data may draw random numbers
        train, validation = open_datasets(config, world)
        if not isinstance(train, Stream):
            self.clock.samples_per_epoch = len(train)
        self.replica = build_replica(config, world)
        start_equal(world, self.replica)
        self._exchange = exchange = make_exchange(world, self.replica, config.rule)
        self.run_dir = once(world, lambda: make_run_dir(config))
        began = time.perf_counter()
        with ExitStack() as stack:
            events = stack.enter_context(EventLog(self.run_dir / "events", world.rank, world.node))
            self._progress = make_progress(world.rank, config.progress)
            stack.callback(self._progress.close)
            self._worker = Worker(
                world, self.replica, exchange, config, self.clock, Stopwatch(), events
            )
            self._progress.begin(config.epochs, self.clock.samples_per_epoch, self._describe(train))
            stopped = self._run_epochs(train, validation, events)
        show_centre(self.replica, exchange)
        self.replica.release()
        seconds = time.perf_counter() - began
        summary = summarise(self.history, world.size, config.rule.name, seconds, stopped)
        once(world, lambda: self._save(summary))
        return Result(
            getattr(self.replica, "module", self.replica), self.history, summary, self.run_dir
        )

    def _run_epochs(self, train: Any, validation: Any, events: EventLog) -> str | None:
        """All epochs; the reason if they ended early."""
        stopping = Stopping(self.config.stop)
        reason: str | None = None
        self._call("on_train_begin")
        while self.clock.epoch < self.config.epochs and reason is None:
            record = self._run_epoch(train, validation)
            self.history.append(record)
            figures: Logs = {name: getattr(record, name) for name in _FIGURES}
            details: dict[str, Any] = {"epoch": record.epoch, **figures}
            events.write(
                "epoch",
                step=self.clock.step,
                seconds=record.seconds,
                loss=record.train_loss,
                samples=record.samples,
                **details,
            )
            self._progress.epoch_end(record)
            once(self.world, lambda: self.history.save(self.run_dir / "history.json"))
            self._call("on_epoch_end", record.epoch, figures)
            reason = "a callback asked for it" if self._stop_agreed() else stopping.reason(figures)
        self._validate_last(validation)
        if reason:
            self._progress.message(f"stopped after epoch {self.clock.epoch}: {reason}")
        self._call("on_train_end")
        return reason

    def _run_epoch(self, train: Any, validation: Any) -> EpochRecord:
        worker, world = self._working(), self.world
        number = self.clock.epoch + 1
        self._call("on_epoch_begin", number)
        began = time.perf_counter()

        def before() -> None:
            self._call("on_batch_begin", self.clock.step + 1)

        def after(loss: float | None, samples: int) -> None:
            done = self.clock.samples_in_epoch
            self._progress.update(number, done, loss, done / (time.perf_counter() - began))
            self._call("on_batch_end", self.clock.step, {"loss": loss, "samples": samples})

        train_loss = worker.train_epoch(train, before, after)
        seconds = time.perf_counter() - began
        samples = self.clock.samples_in_epoch
        self.clock.end_epoch()
        average_buffers(world, self.replica)
        logs = self._validate(validation) if self._validation_is_due() else {}
        return EpochRecord(
            epoch=number,
            samples=samples,
            seconds=seconds,
            train_loss=train_loss,
            val_loss=logs.get("val_loss"),
            val_accuracy=logs.get("val_accuracy"),
            learning_rate=self.replica.learning_rate,
            samples_per_s=samples / seconds,
            time=_mean_over_ranks(world, worker.watch.take()),
        )

    def _validate(self, validation: Any) -> Logs:
        if validation is None:
            return {}
        size = self.config.data.validation_batch_size
        with at_centre(self.replica, self._exchange):
            logs = validate(self.world, self.replica, validation, size, self._working().watch)
        if logs["val_accuracy"] is None and "val_accuracy" in (self.config.stop.target or ""):
            raise ConfigError(
                f"stop.target is {self.config.stop.target!r}, but this loss has no accuracy; "
                "use val_loss"
            )
        self._call("on_validation_end", logs)
        return logs

    def _validate_last(self, validation: Any) -> None:
        """A run that stopped early between two validations still tells what it reached."""
        last = self.history[-1]
        if validation is None or last.val_loss is not None:
            return
        logs = self._validate(validation)
        last.val_loss, last.val_accuracy = logs["val_loss"], logs["val_accuracy"]
        once(self.world, lambda: self.history.save(self.run_dir / "history.json"))

    def _validation_is_due(self) -> bool:
        epoch = self.clock.epoch
        last = epoch == self.config.epochs or self._working().stopped
        return last or epoch % self.config.validate_every == 0

    def _stop_agreed(self) -> bool:
        """A rank may have asked in the last step or after it, when no exchange could tell."""
        votes = np.array([float(self._working().stop_asked)])
        self.world.all_reduce(votes)
        return bool(votes[0] > 0)

    def _working(self) -> Worker:
        assert self._worker is not None, "fit() has made the worker"
        return self._worker

    def _call(self, event: str, *details: Any) -> None:
        for callback in self.callbacks:
            function = getattr(callback, event, None)  # a callback need not derive from Callback
            if function is not None:
                function(self, *details)

    def _describe(self, train: Any) -> str:
        config, world = self.config, self.world
        nodes = len(set(world.share(world.node)))
        batch = config.data.batch_size * config.accumulate
        samples = "a stream" if isinstance(train, Stream) else f"{len(train):,} samples"
        return (
            f"{world.size} rank{'s' * (world.size > 1)} on {nodes} node{'s' * (nodes > 1)}, "
            f"rule {config.rule.name}, batch {batch} per rank ({batch * world.size} in all), "
            f"{train.name}: {samples}"
        )

    def _save(self, summary: dict[str, Any]) -> None:
        try:
            self.replica.save(self.run_dir / "model")
        except OSError as error:
            raise OutputError(f"the model cannot be saved in {self.run_dir}: {error}") from error
        write_json(self.run_dir / "summary.json", summary)


_FIGURES = ("train_loss", "val_loss", "val_accuracy", "learning_rate", "samples_per_s")


def _mean_over_ranks(world: World, split: TimeSplit) -> TimeSplit:
    seconds = np.array([split.compute, split.wait, split.communication, split.data])
    world.all_reduce(seconds)
    return TimeSplit(*(float(value) / world.size for value in seconds))
