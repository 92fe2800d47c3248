"""Rank 0 takes two seconds to validate: validation_gap.py FOLDER RULE. Tells the longest pause
between two steps of the other ranks meanwhile."""

import json
import sys
import time
from pathlib import Path

import numpy as np
from numpy_network import build

from paceline import Callback, Trainer, init
from paceline.observe import read_events


class Slow(Callback):
    def on_validation_end(self, trainer, logs):
        if not trainer.history:
            time.sleep(2)

    def on_batch_end(self, trainer, step, logs):
        time.sleep(0.01)


world, folder, rule = init(), sys.argv[1], json.loads(sys.argv[2])
inputs = np.random.default_rng(0).normal(size=(300, 50)).astype(np.float32)
Trainer(
    lambda: build(50, 400, lr=0.01, momentum=0.9),
    (inputs, inputs[:, :1]), (inputs[:10], inputs[:10, :1]), world=world, rule=rule, epochs=20,
    progress="off", callbacks=[Slow()], data={"batch_size": 10}, run_dir=folder,
).fit()  # fmt: skip
world.barrier()
if world.rank == 0:
    steps = [event for event in read_events(Path(folder) / "events") if event["event"] == "step"]
    for rank in range(1, world.size):
        times = np.array([event["time"] for event in steps if event["rank"] == rank])
        print(f"GAP {np.diff(times).max():.3f}", flush=True)
