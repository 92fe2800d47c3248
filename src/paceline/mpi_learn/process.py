"""What each rank of an MPIManager does: one run of Paceline's Trainer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

from paceline.comm import World
from paceline.config.run import RunConfig
from paceline.data import Source
from paceline.frameworks.registry import is_model
from paceline.mpi_learn.algo import Algo
from paceline.mpi_learn.builders import ModelBuilder, build
from paceline.mpi_learn.data import Data
from paceline.mpi_learn.own_model import OwnModelReplica
from paceline.mpi_learn.sources import count_samples, file_settings, open_files
from paceline.observe import History
from paceline.training.callbacks import Callback, Logs
from paceline.training.run_dir import write_json
from paceline.training.trainer import Result, Trainer

_log = logging.getLogger("paceline.mpi_learn")
_NAMES = {"train_loss": "loss", "val_loss": "val_loss", "val_accuracy": "val_acc"}
"""Metrics of an epoch, and what mpi_learn calls them."""

_PATIENCE_S = 30.0

Histories = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class RunRequest:
    """The run that the manager was asked for."""

    epochs: int
    train: Sequence[Any] | str
    validation: Sequence[Any] | str
    rule: dict[str, Any]
    callbacks: list[Any] = field(default_factory=list)
    verbose: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


class MPIProcess:
    """This rank's part: `train()` trains once, together with all other ranks."""

    def __init__(
        self, world: World, data: Data, algo: Algo, builder: ModelBuilder, request: RunRequest
    ) -> None:
        self.rank = world.rank
        self.data, self.algo, self.model_builder = data, algo, builder
        self.model: Any = None
        self.result: Result | None = None
        self.histories: Histories = {}
        self.began = False
        self._world, self._request = world, request

    def train(self) -> Histories:
        """Train to the end; returns the metrics of each epoch, by name, under the key "0"."""
        if not self.began:
            self.began = True
            self._gather()
            self.result = self._make_trainer().fit()
            self.model = self.result.model
            self.histories = {"0": _by_name(self.result.history)}
            self.data.finalize()
        return self.histories

    def _gather(self) -> None:
        """Wait for all ranks; warn if rank 0, whose script decides when, takes long."""
        waiting = Timer(
            _PATIENCE_S, _log.warning, ("waiting for rank 0 to call manager.process.train()",)
        )
        waiting.daemon = True
        waiting.start()
        self._world.barrier()
        waiting.cancel()

    def record_details(self, json_name: str | None = None, meta: Any = None) -> Histories:
        """Write history, time and the model's place as JSON, on rank 0 only."""
        if self.result is not None and self.rank == 0:
            summary, run_dir = self.result.summary, self.result.run_dir
            facts = {"train_time": summary["seconds"], "history": self.histories}
            facts |= {"summary": summary, "run_directory": str(run_dir)}
            write_json(Path(json_name or "history.json"), facts | (meta or {}))
        return self.histories

    def _make_trainer(self) -> Trainer:
        request, algo = self._request, self.algo
        seed = request.settings.get("seed", RunConfig().seed)
        model = build(self.model_builder, seed)
        own: dict[str, Any] = {}
        if is_model(model):
            own = {"loss": algo.loss, "optimizer": algo.optimizer()}
        else:
            if hasattr(model, "compile"):
                model.compile(loss=algo.loss, optimizer=algo.optimizer(), metrics=["accuracy"])
            model = OwnModelReplica(model)
        train = open_files(self._world, self.data, request.train, "training")
        pace = self._read_pace(train)
        validates = pace is not None and len(request.validation) > 0
        validation = None
        if validates:
            own["validate_every"] = pace
            validation = open_files(self._world, self.data, request.validation, "validation")
        return Trainer(
            model,
            train,
            validation,
            callbacks=[*request.callbacks, *([_Verbose()] if request.verbose else [])],
            rule=request.rule,
            epochs=request.epochs,
            data={"batch_size": self.data.batch_size, **file_settings(self.data, request.train)},
            **own,
            **request.settings,
        )

    def _read_pace(self, train: Source | str) -> int | None:
        """Epochs between validations, from a number of updates; None: no validation."""
        every = self.algo.validate_every
        if every is None:
            return 1
        if every <= 0:
            return None
        samples = count_samples(self._world, self.data, train)
        per_update = self.data.batch_size * self.algo.sync_every
        if self._request.rule.get("synchronous"):
            per_update *= self._world.size
        epochs = every * per_update / samples
        pace = max(1, round(epochs))
        if abs(epochs - pace) > 0.01 and self.rank == 0:
            _log.warning(
                "validate_every is %s updates, that is %.2f epochs; validation runs at the end of "
                "epochs: of each %s",
                every,
                epochs,
                "one" if pace == 1 else f"{pace}th",
            )
        return pace


class _Verbose(Callback):
    """Logs the loss of every batch of the leading rank."""

    def on_batch_end(self, trainer: Trainer, step: int, logs: Logs) -> None:
        _log.info("step %d: loss %s", step, logs.get("loss"))


def _by_name(history: History) -> dict[str, list[float]]:
    """The metrics of each epoch as lists, without those that were not measured."""
    columns: dict[str, list[float]] = {}
    for record in history:
        figures = {theirs: getattr(record, ours) for ours, theirs in _NAMES.items()}
        for name, value in (figures | record.metrics).items():
            if value is not None:
                columns.setdefault(name, []).append(value)
    return columns
