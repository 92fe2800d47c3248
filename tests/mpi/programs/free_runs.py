"""Asynchronous rules one after the other: free_runs.py FOLDER PRETEND RULES.

PRETEND is 1 to take every rank for a node of its own. Prints per rule: what rank 0 got, whether all
ranks got it, the samples of each rank, and the messages left.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from mpi4py import MPI
from numpy_network import build

from paceline import Callback, Trainer, init
from paceline.observe import read_events

SAMPLES, BATCH, EPOCHS = 600, 10, 10


class SlowWorker(Callback):
    def on_batch_end(self, trainer, step, logs):
        if trainer.world.rank == 1:
            time.sleep(0.01)


def main(folder, pretend, rules):
    world = init()
    if pretend:
        world.node_ranks = (world.rank,)
    inputs = np.random.default_rng(0).normal(size=(SAMPLES, 20)).astype(np.float32)
    targets = inputs[:, :1] - inputs[:, 1:2]
    for number, rule in enumerate(rules):
        momentum = 0.0 if rule["name"] == "downpour" else 0.9  # momentum on stale pushes diverges
        result = Trainer(
            partial(build, 20, 300, lr=0.005, momentum=momentum),  # beyond one eager send
            (inputs, targets), (inputs[:50], targets[:50]), world=world, rule=rule,
            epochs=EPOCHS, progress="off", callbacks=[SlowWorker()], data={"batch_size": BATCH},
            run_dir=f"{folder}/{number}",
        ).fit()  # fmt: skip
        weights = result.model.parameters()
        world.barrier()
        left = world._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        everyone = world.share((weights.tobytes(), left))
        if world.rank == 0:
            events = read_events(Path(f"{folder}/{number}/events"))
            steps = [event for event in events if event["event"] == "step"]
            samples = [
                sum(e["samples"] for e in steps if e["rank"] == rank) for rank in range(world.size)
            ]
            outcome = {
                "rule": rule,
                "equal": len({bytes for bytes, _ in everyone}) == 1,
                "left": [left for _, left in everyone],
                "samples": samples,
                "epochs": len(result.history),
                "val_loss": result.history[-1].val_loss,
                "bytes": sum(event["bytes"] for event in steps),
            }
            print("OUTCOME", json.dumps(outcome), flush=True)


main(sys.argv[1], sys.argv[2] == "1", json.loads(sys.argv[3]))
