"""Train, be interrupted, go on: a torch network with dropout, on the built-in digits."""

import hashlib

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


def train(world, folder, rule, exchange, optimizer, stop_after, epochs):
    """What came of it; if it was interrupted, the exit code of each rank.

    It goes on from what is in the folder, and is interrupted after that many steps of rank 1, if
    these are not 0.
    """
    trainer = paceline.Trainer(
        build, "digits", rule=rule, exchange=exchange, epochs=epochs, optimizer=optimizer,
        progress="off", run_dir=folder, resume="auto", checkpoint_every=20,
        callbacks=[At(stop_after)], data={"batch_size": 128},
    )  # fmt: skip
    code, outcome = 0, None
    try:
        outcome = describe(trainer.fit())
    except Interrupted as stop:
        code = stop.code
    codes = world.allgather_values(code)
    return {"interrupted": codes} if any(codes) else outcome


def describe(result):
    state = result.model.state_dict()
    bits = b"".join(tensor.contiguous().numpy().tobytes() for tensor in state.values())
    return {
        "parameters": hashlib.sha256(bits).hexdigest(),
        "history": [(r.train_loss, r.val_loss, r.samples) for r in result.history],
        "finite": all(bool(torch.isfinite(t.double()).all()) for t in state.values()),
        "accuracy": result.summary["val_accuracy"],
    }
