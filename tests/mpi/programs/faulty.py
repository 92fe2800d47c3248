"""Trains softmax regression on the digits while faults strike: see `parse` for the arguments.

Rank 0 prints the accuracy; FOLDER/run is the run's directory, and FOLDER/struck tells when the
first fault struck.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from paceline import Callback, Trainer, init
from paceline.data import digits
from paceline.frameworks.numpy import NumpyReplica
from paceline.testing import Fault, Inject

SAMPLES, BATCH, EPOCHS, RATE = 3000, 25, 2, 0.02


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rule", type=json.loads, default={"name": "bsp"})
    parser.add_argument("--no-share", action="store_true")
    parser.add_argument("--fault", type=Fault.parse, action="append", default=[])
    parser.add_argument("--pace-s", type=float, default=0.0, help="seconds that each step takes")
    return parser.parse_args()


def softmax_regression(arrays, batch):
    """Mean cross-entropy and its gradient, by hand."""
    inputs = batch.inputs.reshape(batch.samples, -1)
    logits = inputs @ arrays["weight"].T + arrays["bias"]
    logits = logits - logits.max(axis=1, keepdims=True)
    likely = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rows = np.arange(batch.samples)
    loss = -np.log(likely[rows, batch.targets] + 1e-12).mean()
    likely[rows, batch.targets] -= 1
    likely /= batch.samples
    return loss, {"weight": likely.T @ inputs, "bias": likely.sum(axis=0)}


def count_correct(arrays, batch):
    logits = batch.inputs.reshape(batch.samples, -1) @ arrays["weight"].T + arrays["bias"]
    return int((logits.argmax(axis=1) == batch.targets).sum())


class Slices:
    """Plain SGD on pieces of the common vector."""

    def __init__(self, parameters, pieces):
        self.parameters, self.pieces = parameters, pieces

    def step(self, present, fill):
        for piece in self.pieces:
            gradient = np.empty_like(self.parameters[piece])
            fill(piece, gradient)
            self.parameters[piece] -= RATE * gradient


class SharedReplica(NumpyReplica):
    """One whose parameters the ranks of a node may share, as those of torch: it starts sooner."""

    def divides(self):
        return True

    def state_names(self):
        return ()

    def slice_optimizer(self, parameters, pieces, states):
        return Slices(parameters, pieces)

    def catch_gradients(self, arrived):
        return lambda: None

    def show_whole_state(self, optimizer):
        return lambda: None


def build():
    arrays = {"weight": np.zeros((10, 784), np.float32), "bias": np.zeros(10, np.float32)}
    return SharedReplica(arrays, softmax_regression, RATE, count_correct=count_correct)


class Strike(Callback):
    """Notes when the first fault is about to strike; and sets the pace."""

    def __init__(self, place, faults, pace_s):
        self.place, self.faults, self.pace_s = place, faults, pace_s

    def on_batch_begin(self, trainer, step):
        time.sleep(self.pace_s)
        self.note(trainer, step, ("nan", "delay", "drop"))

    def on_batch_end(self, trainer, step, logs):
        self.note(trainer, step, ("exception", "exit", "sigkill", "sigstop", "disk-full"))

    def note(self, trainer, step, kinds):
        if self.place.exists():
            return
        for fault in self.faults:
            if (fault.rank, fault.step) == (trainer.world.rank, step) and fault.kind in kinds:
                self.place.write_text(str(time.time()))


def main(args):
    world = init()
    images = digits.load("train")
    train = digits.image_source(images.inputs[:SAMPLES], images.targets[:SAMPLES], "some digits")
    result = Trainer(
        build,
        train,
        digits.load("validation"),
        callbacks=[Strike(args.folder / "struck", args.fault, args.pace_s), Inject(*args.fault)],
        rule=args.rule,
        share=not args.no_share,
        data={"batch_size": BATCH},
        epochs=EPOCHS,
        checkpoint_every=5,
        stall_warning_s=1,
        stall_timeout_s=4,
        progress="off",
        run_dir=str(args.folder / "run"),
    ).fit()
    if world.rank == 0:
        print(f"ACCURACY {result.summary['val_accuracy']:.4f}", flush=True)


main(parse())
