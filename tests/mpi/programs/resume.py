"""Train, be interrupted, go on: a torch network with dropout, on the built-in digits.

    resume.py FOLDER RULE-AS-JSON OPTIMIZER STOP_AFTER EPOCHS

Interrupted after that many steps of rank 1, if it is not 0. Prints a hash of the result.
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


folder, rule, optimizer, stop_after, epochs = sys.argv[1:]
trainer = paceline.Trainer(
    build, "digits", rule=json.loads(rule), epochs=int(epochs), optimizer=optimizer, progress="off",
    run_dir=folder, resume="auto", checkpoint_every=20, callbacks=[At(int(stop_after))],
    data={"batch_size": 128},
)  # fmt: skip
try:
    result = trainer.fit()
except Interrupted:
    sys.exit(75)
if trainer.world.rank == 0:
    state = result.model.state_dict()
    bits = b"".join(tensor.contiguous().numpy().tobytes() for tensor in state.values())
    history = [(r.train_loss, r.val_loss, r.samples) for r in result.history]
    outcome = {
        "parameters": hashlib.sha256(bits).hexdigest(),
        "history": history,
        "finite": all(bool(torch.isfinite(t.double()).all()) for t in state.values()),
        "accuracy": result.summary["val_accuracy"],
    }
    print("OUTCOME", json.dumps(outcome))
