"""TensorBoard's event files: curves while a run trains, the workers' own, and the settings."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname
from time import monotonic, time
from typing import TYPE_CHECKING

from paceline.config.run import RunConfig
from paceline.errors import ConfigError
from paceline.training.callbacks import Callback, Logs

if TYPE_CHECKING:
    from paceline.training.trainer import Trainer

_EVERY_S = 1.0
"""How often a worker writes about its steps."""
FOLDER = "tensorboard"
_NAMES = {
    "train_loss": "loss/train",
    "val_loss": "loss/validation",
    "val_accuracy": "accuracy/validation",
    "learning_rate": "optimizer/learning_rate",
    "samples_per_s": "speed/samples_per_s",
}


class TensorBoard(Callback):
    """Writes the folder `tensorboard` of the run: `Trainer(..., callbacks=[TensorBoard()])`.

    Rank 0 writes the figures of each epoch and the settings as hyper-parameters. Every rank writes
    its loss and its speed about once a second, into a folder of its own (`rank-0003`), so that
    workers lie over each other in one plot. TensorBoard's steps are samples of all ranks.
    """

    def __init__(self) -> None:
        check_installed()
        self._own: _Writer | None = None
        self._common: _Writer | None = None
        self._steps = 0
        self._since = 0.0

    def on_train_begin(self, trainer: Trainer) -> None:
        folder = trainer.run_dir / FOLDER
        self._own = _Writer(folder / f"rank-{trainer.world.rank:04d}")
        if trainer.world.rank == 0:
            self._common = _Writer(folder)
            self._common.write_settings(trainer.config)
        self._steps, self._since = 0, monotonic()

    def on_batch_end(self, trainer: Trainer, step: int, logs: Logs) -> None:
        self._steps += 1
        seconds = monotonic() - self._since
        if self._own is None or seconds < _EVERY_S:
            return
        own = {"workers/step_ms": 1000 * seconds / self._steps, "workers/loss": logs["loss"]}
        self._own.write(trainer.clock.samples, own)
        self._steps, self._since = 0, monotonic()

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        if self._common is not None:
            named = {_NAMES.get(name, f"validation/{name}"): logs[name] for name in logs}
            self._common.write(trainer.clock.samples, named)

    def on_train_end(self, trainer: Trainer) -> None:
        for writer in (self._own, self._common):
            if writer is not None:
                writer.close()
        self._own = self._common = None


def check_installed() -> None:
    """Whether TensorBoard is there; it is no part of the base installation."""
    if find_spec("tensorboard") is None:
        raise ConfigError(
            "tensorboard is not installed, and its event files are written by it: "
            "pip install 'paceline[tensorboard]'"
        )


class _Writer:
    """One file of events.

    TensorBoard's EventFileWriter would load TensorFlow where that is installed: seconds, and most
    of a gigabyte for each rank. What it is made of does not.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time():.0f}.{gethostname()}.{os.getpid()}"
        self._file = RecordWriter((folder / name).open("ab"))
        self._add(file_version="brain.Event:2")

    def write(self, samples: int, values: Logs) -> None:
        """Scalars, at so many samples of all ranks; those that are None are left out."""
        found = [
            self._summary.Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if value is not None
        ]
        self._add(summary=self._summary.Summary(value=found), step=samples)

    def write_settings(self, config: RunConfig) -> None:
        """As hyper-parameters, by which TensorBoard can compare runs."""
        from tensorboard.plugins.hparams import plugin_data_pb2 as hparams

        start = hparams.SessionStartInfo()
        for name, value in _flatten("", config.describe()).items():
            if isinstance(value, bool):
                start.hparams[name].bool_value = value
            elif isinstance(value, int | float):
                start.hparams[name].number_value = value
            elif value is not None:
                start.hparams[name].string_value = str(value)
        content = hparams.HParamsPluginData(version=0, session_start_info=start)
        plugin = self._summary.SummaryMetadata.PluginData(
            plugin_name="hparams", content=content.SerializeToString()
        )
        value = self._summary.Summary.Value(
            tag="_hparams_/session_start_info",
            metadata=self._summary.SummaryMetadata(plugin_data=plugin),
        )
        self._add(summary=self._summary.Summary(value=[value]))

    def close(self) -> None:
        self._file.close()

    def _add(self, **what: object) -> None:
        self._file.write(self._event(wall_time=time(), **what).SerializeToString())
        self._file.flush()


def _flatten(name: str, value: object) -> dict[str, object]:
    """Settings by names like optimizer.lr."""
    if not isinstance(value, dict):
        return {name: value}
    found: dict[str, object] = {}
    for key, item in value.items():
        found |= _flatten(f"{name}.{key}" if name else str(key), item)
    return found
