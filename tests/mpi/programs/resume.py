"""Train, be interrupted, go on: a torch network with dropout, on the built-in digits.

    resume.py FOLDER CASES-AS-JSON

A case is [NAME, RULE, OPTIMIZER, STOP_AFTER, EPOCHS] and trains in FOLDER/NAME; it is interrupted
after that many steps of rank 1, if it is not 0. Prints of each case whether it was interrupted,
or a hash of the result.
"""

import hashlib
import json
import sys

import torch
from torch import nn

import paceline
from paceline.errors import Interrupted
from paceline.training.callbacks import Callback


class At(Callback):
    def __init__(self, step):
        self.step = step

    def on_batch_end(self, trainer, step, logs):
        if step == self.step and trainer.world.rank == 1:
            trainer.interrupt()


def build():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(24, 10),
    )  # fmt: skip


def train(folder, rule, optimizer, stop_after, epochs):
    """The result, or the exit code for this rank if it was interrupted."""
    trainer = paceline.Trainer(
        build, "digits", rule=rule, epochs=epochs, optimizer=optimizer, progress="off",
        run_dir=folder, resume="auto", checkpoint_every=20, callbacks=[At(stop_after)],
        data={"batch_size": 128},
    )  # fmt: skip
    try:
        return trainer.fit()
    except Interrupted as stop:
        return stop.code


def describe(result):
    state = result.model.state_dict()
    bits = b"".join(tensor.contiguous().numpy().tobytes() for tensor in state.values())
    return {
        "parameters": hashlib.sha256(bits).hexdigest(),
        "history": [(r.train_loss, r.val_loss, r.samples) for r in result.history],
        "finite": all(bool(torch.isfinite(t.double()).all()) for t in state.values()),
        "accuracy": result.summary["val_accuracy"],
    }


folder, cases = sys.argv[1], json.loads(sys.argv[2])
world = paceline.init()
for name, *case in cases:
    if world.rank == 0:
        print("case:", name, file=sys.stderr, flush=True)  # the last one is the one that failed
    result = train(f"{folder}/{name}", *case)
    codes = world.share(result if isinstance(result, int) else 0)
    if world.rank == 0:
        outcome = {"interrupted": codes} if any(codes) else describe(result)
        print("OUTCOME", json.dumps([name, outcome]), flush=True)
