"""Trains a small network without dropout on the digits and writes losses and parameters."""

import json
import sys

import numpy as np
import torch
from torch import nn

import paceline
from paceline.data import digits
from paceline.observe import read_events

run_dir, batch_size, rule = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
world = paceline.init()


def network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(8 * 36, 10)
    )


class StopAt(paceline.Callback):
    def on_batch_end(self, trainer, step, logs):
        if step == 50:
            trainer.stop()


source = digits.load("train")
result = paceline.Trainer(
    network,
    source,
    digits.load("validation"),
    epochs=1,
    rule=rule,
    data={"batch_size": batch_size},
    run_dir=run_dir,
    callbacks=[StopAt()],
).fit()
hashes = world.share(b"".join(p.detach().numpy().tobytes() for p in result.model.parameters()))
assert len(set(hashes)) == 1, "replicas differ"
if world.rank == 0:
    steps: dict[int, list[tuple[float, int]]] = {}
    for event in read_events(result.run_dir / "events"):
        if event["event"] == "step":
            steps.setdefault(event["step"], []).append((event["loss"], event["samples"]))
    losses = [
        sum(loss * n for loss, n in parts) / sum(n for _, n in parts)
        for _, parts in sorted(steps.items())
    ]
    parameters = np.frombuffer(hashes[0], np.float32)
    outcome = {
        "losses": losses,
        "parameters": parameters.tobytes().hex(),
        "val_loss": result.summary["val_loss"],
        "threads": torch.get_num_threads(),
    }
    print("OUTCOME", json.dumps(outcome), flush=True)
