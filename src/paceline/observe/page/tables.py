"""The figures of runs as CSV, for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from paceline.core.files import write_atomically
from paceline.observe.page.figures import RunFigures

_EPOCH = (
    *("epoch", "samples", "seconds", "train_loss", "val_loss", "val_accuracy", "learning_rate"),
    "samples_per_s",
)
_SPLIT = ("compute", "wait", "communication", "data")


def write_tables(runs: Sequence[RunFigures], folder: Path) -> list[Path]:
    """epochs.csv, steps.csv and workers.csv: a line each, with the run's name in front."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = sorted({name for run in runs for record in run.history for name in record.metrics})
    tables = {
        "epochs.csv": (["run", *_EPOCH, *_SPLIT, *metrics], _epochs(runs, metrics)),
        "steps.csv": (["run", "step", "train_loss", "seconds"], _steps(runs)),
        "workers.csv": (
            ["run", "rank", "node", "steps", "samples", "bytes", *_SPLIT],
            _workers(runs),
        ),
    }
    for name, (head, rows) in tables.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([head, *rows])
        write_atomically(folder / name, text.getvalue())
    return [folder / name for name in tables]


def _epochs(runs: Iterable[RunFigures], metrics: Sequence[str]) -> list[list[object]]:
    return [
        [
            run.name,
            *(getattr(record, name) for name in _EPOCH),
            *asdict(record.time).values(),
            *(record.metrics.get(name) for name in metrics),
        ]
        for run in runs
        for record in run.history
    ]


def _steps(runs: Iterable[RunFigures]) -> list[list[object]]:
    """Means over all ranks; of a long run over several steps."""
    rows: list[list[object]] = []
    for run in runs:
        seconds = dict(run.step_s.means())
        losses = dict(run.loss.means())
        for middle in sorted({*seconds, *losses}):
            rows.append([run.name, round(middle), losses.get(middle), seconds.get(middle)])
    return rows


def _workers(runs: Iterable[RunFigures]) -> list[list[object]]:
    return [
        [
            *(run.name, worker.rank, worker.node, worker.steps, worker.samples, worker.bytes),
            *(worker.split.get(name) for name in _SPLIT),
        ]
        for run in runs
        for _, worker in sorted(run.workers.items())
    ]
