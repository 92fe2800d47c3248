"""What a checkpoint costs: time that training loses to it, in one run, interleaved.

    python benchmarks/checkpoint_cost.py

A run saves every 2K steps. The K steps from a save on, while a thread writes it, are compared with
the K steps after them; the difference is what one checkpoint costs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from paceline import Trainer
from paceline.observe import read_events

MODELS = {
    "mnist": (("paceline.models.mnist:MNISTNetwork", (1, 28, 28), 10, 64), "sgd", 60),
    "mlp": (("mlp", (784,), 10, 64), "adam", 40),
    "alexnet": (("paceline.models.alexnet:alexnet", (3, 224, 224), 1000, 16), "sgd", 8),
}
"""Model, shape of an input, classes, batch; optimizer; and K."""
SAVES = 5


def mlp():
    from torch import nn

    return nn.Sequential(
        nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help="default: all")
    parser.add_argument("--inside", metavar="RUN_DIR", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        _train(args.models[0], args.inside)
        return 0
    for name in args.models:
        with tempfile.TemporaryDirectory(prefix="paceline-cost-") as folder:
            words = ("-m", "paceline", "run", "-n", "2", "--", __file__, name, "--inside", folder)
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
            print(_report(name, Path(folder)), flush=True)
    return 0


def _train(name: str, run_dir: str) -> None:
    (model, shape, classes, batch), optimizer, steps = MODELS[name]
    chance = np.random.default_rng(1)
    samples = 2 * batch * (2 * steps * SAVES + 1)
    inputs = np.broadcast_to(chance.normal(size=(1, *shape)).astype(np.float32), (samples, *shape))
    targets = chance.integers(classes, size=samples)
    Trainer(
        mlp if model == "mlp" else model, (inputs, targets), epochs=1, progress="off",
        optimizer={"name": optimizer, "lr": 1e-5}, data={"batch_size": batch},
        checkpoint_every=2 * steps, run_dir=run_dir,
    ).fit()  # fmt: skip


def _report(name: str, run_dir: Path) -> str:
    steps = MODELS[name][2]
    events = [e for e in read_events(run_dir / "events") if e["event"] == "step" and e["rank"] == 0]
    seconds = [event["seconds"] for event in sorted(events, key=lambda event: event["step"])]
    first = 2 * steps  # the save comes after this one, in the time of the next
    windows = [sum(seconds[at : at + steps]) for at in range(first, len(seconds) - steps, steps)]
    saving, plain = windows[0::2], windows[1::2]
    cost = median(a - b for a, b in zip(saving, plain, strict=False))
    size = sum(f.stat().st_size for f in max((run_dir / "checkpoints").iterdir()).iterdir())
    facts = {"MB": round(size / 1e6, 1), "windows_s": [round(w, 3) for w in windows]}
    return (
        f"{name:8} {size / 1e6:7.1f} MB  {1000 * cost:7.0f} ms a checkpoint  "
        f"{100 * cost / 60:5.2f} % at one per minute   {json.dumps(facts)}"
    )


if __name__ == "__main__":
    sys.exit(main())
