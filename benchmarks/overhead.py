"""What a Trainer's step costs beside the computing: data, loss, event log.

    python benchmarks/overhead.py [--rounds 5] [--steps 100]

One rank trains the MNIST network on random images, batch 64: in a bare torch loop whose batches lie
ready, and in a Trainer with and without its event log. Interleaved, best of the rounds.
"""

from __future__ import annotations

import argparse
import tempfile
from time import perf_counter

import numpy as np
import torch

from paceline import Trainer
from paceline.models.mnist import MNISTNetwork
from paceline.tools.bench.ranks.timing import best_of

BATCH = 64


def bare_loop(images: np.ndarray, labels: np.ndarray) -> float:
    """Seconds per step of plain torch."""
    model = MNISTNetwork()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = list(
        zip(
            torch.from_numpy(images).split(BATCH),
            torch.from_numpy(labels).split(BATCH),
            strict=True,
        )
    )
    began = perf_counter()
    for inputs, targets in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return (perf_counter() - began) / len(batches)


def trainer_step(images: np.ndarray, labels: np.ndarray, events_every: int) -> float:
    """Seconds per step of a Trainer's epoch."""
    with tempfile.TemporaryDirectory() as folder:
        result = Trainer(
            MNISTNetwork,
            (images, labels),
            epochs=1,
            data={"batch_size": BATCH},
            optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9},
            events_every=events_every,
            progress="off",
            run_dir=f"{folder}/run",
        ).fit()
    return float(result.history[0].seconds) / (len(images) // BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    images = rng.random((args.steps * BATCH, 1, 28, 28), dtype=np.float32)
    labels = rng.integers(0, 10, args.steps * BATCH)
    found = best_of(
        args.rounds,
        {
            "bare torch loop": lambda: bare_loop(images, labels),
            "Trainer": lambda: trainer_step(images, labels, 1),
            "Trainer, no events": lambda: trainer_step(images, labels, 0),
        },
    )
    bare = found["bare torch loop"]
    for name, seconds in found.items():
        print(f"{name:20} {1e3 * seconds:7.3f} ms per step   {seconds / bare:.3f}")


if __name__ == "__main__":
    main()
