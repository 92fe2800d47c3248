"""The grid of the dist-keras thesis: many workers, long windows; which rules stay stable?

    python benchmarks/dist_keras_grid.py --data-dir DIR [--workers 10 40] [--windows 10 40]
        [--rules agn easgd] [--epochs 10] [--lr 0.1] [--samples N] [--json FILE]

A network of 784-1000-2000-1000-10 (4.8 million parameters) on MNIST; the workers are threads of
one process, each with plain SGD and batches of 64. A window is the number of steps between two
exchanges. Without --data-dir it takes the digits that come along. "diverged" is a loss that is no
number, or twice that of guessing; a run that is too short to learn has the loss of guessing.

Workers take turns on the cores, so seconds say how long the simulation took, not how quick a rule
is. A worker that takes fewer steps than a window in the whole run pushes once, as it leaves.
40 workers need 5 GB of memory, 10 need 2 GB.

Hermans 2017, "On Scalable Deep Learning and Parallelizing Gradient Descent". Its own learning
rates are not known here, so compare which runs are stable, and the order of the figures.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import queue
import resource
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn  # here, and not in a worker: threads that import it together get half of it

import paceline
from paceline.comm import run_world
from paceline.data.builtin import digits, mnist
from paceline.errors import TrainingError
from paceline.observe import read_events

BATCH_SIZE = 64
DIVERGED = 2 * math.log(10)
"""A loss above it is worse than knowing nothing: guessing among 10 classes costs log(10)."""
A_DAY_S = 86_400.0

STALENESS = {"downpour": "none", "agn": "agn", "dynsgd": "dynsgd"}
RULES = (*STALENESS, "easgd")
PUBLISHED = {
    ("agn", 10, 10): "98.43 %",
    ("easgd", 10, 10): "98.64 %",
    ("agn", 40, 40): "98.18 %",
    ("easgd", 40, 40): "97.45 %",
}


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    rule: str
    workers: int
    window: int
    epochs: int
    lr: float
    samples: int | None
    data_dir: str | None

    def published(self) -> str:
        if self.rule == "downpour" and self.workers >= 20:
            return "diverged"
        return PUBLISHED.get((self.rule, self.workers, self.window), "")


def make_rule(name: str, window: int) -> Any:
    if name == "easgd":
        return paceline.EASGD(every=window)
    return paceline.Downpour(push_every=window, pull_every=window, staleness=STALENESS[name])


def build_network() -> nn.Module:
    sides = (784, 1000, 2000, 1000, 10)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sides):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def load(part: str, data_dir: str | None, samples: int | None = None) -> Any:
    source: Any = mnist.load(part, data_dir) if data_dir else digits.load(part)
    if samples is None:
        return source
    return digits.image_source(source.inputs[:samples], source.targets[:samples], source.name)


def train(cell: Cell, folder: str, answers: queue.SimpleQueue[dict[str, Any]]) -> None:
    """All workers of a cell; the first word about its end goes into `answers`."""
    train_data = load("train", cell.data_dir, cell.samples)
    validation = load("validation", cell.data_dir)

    def program(world: paceline.World) -> dict[str, Any]:
        trainer = paceline.Trainer(
            build_network,
            train_data,
            validation,
            world=world,
            rule=make_rule(cell.rule, cell.window),
            optimizer={"name": "sgd", "lr": cell.lr, "momentum": 0.0, "fused": True},
            data={"batch_size": BATCH_SIZE, "prefetch": 0},
            epochs=cell.epochs,
            validate_every=cell.epochs,
            run_dir=f"{folder}/run",
            threads=1,
            progress="off",
            events_every=0,
        )
        try:
            with np.errstate(all="ignore"):  # numbers that grow too large are what is looked for
                return trainer.fit().summary
        except TrainingError as error:
            answers.put({"val_accuracy": None, "reason": str(error)})
            raise

    try:
        summary = run_world(cell.workers, program, timeout_s=A_DAY_S)[0]
        answers.put({"val_accuracy": summary["val_accuracy"], "val_loss": summary["val_loss"]})
    except TrainingError:
        return
    except BaseException as error:
        answers.put({"error": f"{type(error).__name__}: {error}"})


def run_in_child(cell: Cell, folder: str, connection: Any) -> None:
    """A process of its own for each cell: it ends at the first worker whose loss is not a number,
    without waiting for the others, and gives back all its memory."""
    answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=train, args=(cell, folder, answers), daemon=True).start()
    answer = answers.get()
    memory_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    connection.send(answer | {"memory_gb": memory_kb / 1e6})
    os._exit(0)  # workers may be in the midst of a step, and an orderly end would trip over them


def measure(cell: Cell) -> dict[str, Any]:
    """The row of a cell."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        child = context.Process(target=run_in_child, args=(cell, folder, theirs))
        child.start()
        theirs.close()  # so that a child that dies is heard
        try:
            answer: dict[str, Any] = ours.recv()
        except EOFError:
            answer = {"error": "the process ended by itself; was there enough memory?"}
        child.join()
        seconds = time.perf_counter() - began
        events = Path(folder) / "run" / "events"
        staleness = mean_staleness(events) if events.exists() else None
    loss = answer.get("val_loss")
    diverged = "error" not in answer and (loss is None or loss > DIVERGED)
    extra = {"diverged": diverged, "staleness": staleness, "seconds": seconds}
    return asdict(cell) | answer | extra


def mean_staleness(events: Path) -> float | None:
    """Updates of the centre by others between a worker's view of it and its push."""
    tallies = [event for event in read_events(events) if event["event"] == "exchanges"]
    counts = [
        (int(age), n)
        for exchange_stats in tallies
        for age, n in exchange_stats["staleness"].items()
    ]
    exchanges = sum(n for _, n in counts)
    return sum(age * n for age, n in counts) / exchanges if exchanges else None


def render(cell: Cell, row: dict[str, Any]) -> str:
    """A line of the table."""
    if "error" in row:
        outcome = f"failed: {row['error']}"
    else:
        outcome = "diverged" if row["diverged"] else f"{row['val_accuracy']:.2%}".replace("%", " %")
    staleness = "" if row["staleness"] is None else f"{row['staleness']:.1f}"
    memory = f"{row['memory_gb']:.1f}" if "memory_gb" in row else ""
    figures = f"{outcome} | {cell.published()} | {staleness} | {row['seconds']:.0f} | {memory}"
    return f"| {cell.workers} | {cell.window} | `{cell.rule}` | {figures} |"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="where the full MNIST lies (default: the digits)")
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 20, 40])
    parser.add_argument("--windows", type=int, nargs="+", default=[10, 20, 40])
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1, help="of the workers' SGD (default 0.1)")
    parser.add_argument("--samples", type=int, help="train on so many only, for a quick look")
    parser.add_argument("--json", help="write the rows to this file")
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    common = (args.epochs, args.lr, args.samples, args.data_dir)
    print("| workers | window | rule | val accuracy | thesis | staleness | seconds | GB |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for workers in args.workers:
        for window in args.windows:
            for rule in args.rules:
                cell = Cell(rule, workers, window, *common)
                rows.append(measure(cell))
                print(render(cell, rows[-1]), flush=True)
                if args.json:  # after each cell: the grid takes hours
                    Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
