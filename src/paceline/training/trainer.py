"""The Trainer: joins model, data, rule and world, and trains."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.comm import World
from paceline.data import Stream, batches_per_epoch
from paceline.errors import OutputError
from paceline.frameworks import seed_generators
from paceline.launch.world import init, together
from paceline.observe import EventLog, History, Stopwatch, make_progress, setup_logging
from paceline.training.build import build_replica
from paceline.training.callbacks import Callback
from paceline.training.clock import Clock
from paceline.training.config import RunConfig, read_config
from paceline.training.datasets import open_datasets
from paceline.training.exchange import (
    Exchange,
    Frame,
    FreeExchange,
    goes_freely,
    make_exchange,
    next_number,
    show_centre,
)
from paceline.training.freely import FreeRun
from paceline.training.lockstep import LockstepRun
from paceline.training.once import once
from paceline.training.rundir import make_run_dir, summarise, write_json
from paceline.training.start import start_equal
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
        self.facts: dict[str, Any] = {}
        setup_logging(world.rank, world.size)
        seed_generators(config.seed)  # functions that make data may draw random numbers
        train, validation = open_datasets(config, world)
        if not isinstance(train, Stream):
            self.clock.samples_per_epoch = len(train)
        self.replica = build_replica(config, world)
        start_equal(world, self.replica)
        frame = Frame(
            number=next_number(world),
            batches=self._batches_to_deal(train),
            seed=config.seed,
            clip_norm=config.clip_norm,
            share=config.share,
        )
        self._exchange = exchange = make_exchange(world, self.replica, config.rule, frame)
        try:
            began, stopped = time.perf_counter(), self._run(exchange, train, validation)
        except BaseException:
            exchange.abandon()
            raise
        show_centre(self.replica, exchange)
        exchange.close()
        self.replica.release()
        seconds = time.perf_counter() - began
        summary = summarise(self.history, world.size, config.rule.name, seconds, stopped)
        summary |= self.facts
        once(world, lambda: self._save(summary))
        return Result(
            getattr(self.replica, "module", self.replica), self.history, summary, self.run_dir
        )

    def _run(self, exchange: Exchange, train: Any, validation: Any) -> str | None:
        """All epochs; the reason if they ended early."""
        config, world = self.config, self.world
        self.run_dir = once(world, lambda: make_run_dir(config))
        with ExitStack() as stack:
            events = stack.enter_context(EventLog(self.run_dir / "events", world.rank, world.node))
            progress = make_progress(world.rank, config.progress)
            stack.callback(progress.close)
            self._worker = Worker(
                world, self.replica, exchange, config, self.clock, Stopwatch(), events
            )
            description = self._describe(train, exchange)
            progress.begin(config.epochs, self.clock.samples_per_epoch, description)
            kind = FreeRun if exchange.free else LockstepRun
            run = kind(self, self._worker, exchange, train, validation, events, progress)
            return run.run()

    def _batches_to_deal(self, train: Any) -> int:
        """Of the whole run, where workers go at their own pace."""
        config = self.config
        if not goes_freely(config.rule, self.world):
            return 0
        size = config.data.batch_size * config.accumulate
        return config.epochs * batches_per_epoch(train, size, self.world.size)

    def _describe(self, train: Any, exchange: Exchange) -> str:
        config, world = self.config, self.world
        nodes = len(set(world.share(world.node)))
        batch = config.data.batch_size * config.accumulate
        together = "" if exchange.free else f" ({batch * world.size} in all)"
        samples = "a stream" if isinstance(train, Stream) else f"{len(train):,} samples"
        text = (
            f"{world.size} rank{'s' * (world.size > 1)} on {nodes} node{'s' * (nodes > 1)}, "
            f"rule {config.rule.name}, batch {batch} per rank{together}, {train.name}: {samples}"
        )
        return f"{text}\n{exchange.describe()}" if isinstance(exchange, FreeExchange) else text

    def _save(self, summary: dict[str, Any]) -> None:
        try:
            self.replica.save(self.run_dir / "model")
        except OSError as error:
            raise OutputError(f"the model cannot be saved in {self.run_dir}: {error}") from error
        write_json(self.run_dir / "summary.json", summary)
