"""Trains softmax regression on the digits while faults strike: see `parse` for the arguments.

Rank 0 prints the accuracy; FOLDER/run is the run's directory, FOLDER/struck is there when a fault
has struck, and FOLDER/mapped-RANK lists what the rank maps of the shared memory.
"""

import argparse
import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
from support.told import HANG_S, Told, count, wait_until_told

from paceline import Callback, Trainer, init
from paceline.data.builtin import digits
from paceline.frameworks.numpy import NumpyReplica
from paceline.testing import Fault, Inject

SAMPLES, BATCH, EPOCHS, RATE = 3000, 25, 2, 0.02
STALLED = "nothing has moved for"
NAMED = r"rank 0(, 2 wait| waits) for rank 1 \(\S+\), busy in told.py"
IN_LOCKSTEP = ("bsp", "average", "diloco")


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rule", type=json.loads, default={"name": "bsp"})
    parser.add_argument("--exchange", type=json.loads, default={})
    parser.add_argument("--fault", type=Fault.parse, action="append", default=[])
    parser.add_argument("--known", action="store_true", help="strike when the pulse tells the step")
    parser.add_argument("--stall-timeout-s", type=float, default=600.0)
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


class Chunk(NamedTuple):
    """A piece of the vector, and where its gradient is written."""

    piece: slice
    gradient: np.ndarray


class Slices:
    """Plain SGD on pieces of the common vector."""

    def __init__(self, parameters, pieces):
        self.parameters = parameters
        self.chunks = [Chunk(piece, np.empty_like(parameters[piece])) for piece in pieces]

    def stepping(self, present):
        return nullcontext()

    def step(self, chunk):
        self.parameters[chunk.piece] -= RATE * chunk.gradient


class SharedReplica(NumpyReplica):
    """One whose parameters the ranks of a node may share, as those of torch: it starts sooner."""

    def step_is_elementwise(self):
        return True

    def slot_names(self):
        return ()

    def slice_optimizer(self, parameters, pieces, states):
        return Slices(parameters, pieces)

    def on_gradient(self, arrived):
        return lambda: None

    def expose_whole_state(self, optimizer):
        return lambda: None


def build():
    arrays = {"weight": np.zeros((10, 784), np.float32), "bias": np.zeros(10, np.float32)}
    return SharedReplica(arrays, softmax_regression, RATE, count_correct=count_correct)


class Strike(Callback):
    """Notes that a fault is about to strike, and what this rank maps of the shared memory."""

    def __init__(self, folder, faults, known):
        self.folder, self.faults, self.known = folder, faults, known

    def on_batch_begin(self, trainer, step):
        if step == 5:  # all that this rank will use has been opened
            lines = Path("/proc/self/maps").read_text().splitlines()
            files = sorted({line.split()[5] for line in lines if " /dev/shm/" in line})
            (self.folder / f"mapped-{trainer.world.rank}").write_text("\n".join(files))
        self.note(trainer, step, ("nan", "delay", "drop"))

    def on_batch_end(self, trainer, step, logs):
        self.note(trainer, step, ("exception", "exit", "sigkill", "sigstop", "disk-full"))

    def note(self, trainer, step, kinds):
        for fault in self.faults:
            if (fault.rank, fault.step) == (trainer.world.rank, step) and fault.kind in kinds:
                if self.known:
                    wait_until_known(fault.rank, fault.step)
                (self.folder / "struck").touch()


def wait_until_known(rank, step):
    """Until the launcher can read that this rank has come so far."""
    pulse, end = Path(os.environ["PACELINE_JOB_DIR"], "heartbeats.json"), time.monotonic() + HANG_S
    while not pulse.exists() or (json.loads(pulse.read_text())[str(rank)]["step"] or 0) < step:
        assert time.monotonic() < end, "its step was not told"
        time.sleep(0.05)


class Delay(Callback):
    """Keeps the others waiting from this step on until rank 0 has named this rank as the cause.

    A rank that gets too little of a busy machine is told of as one that is not heard of; then it
    tries again in the next step. After it, rank 0 goes on when it has seen that all are moving.
    """

    def __init__(self, told, fault, in_lockstep):
        self.told, self.fault, self.in_lockstep = told, fault, in_lockstep

    def on_batch_begin(self, trainer, step):
        rank = trainer.world.rank
        if rank == self.fault.rank and step >= self.fault.step and not count(self.told, NAMED):
            wait_until_told(self.told, STALLED, count(self.told, STALLED) + 1)
        if rank == 0 and self.in_lockstep and count(self.told, NAMED):
            wait_until_told(self.told, NAMED + r"(?s:.*)moving again")


def main(args):
    world = init()
    told = args.folder / "told"
    if world.rank == 0:
        sys.stderr = Told(told)
    delays = [fault for fault in args.fault if fault.kind == "delay"]
    strikes = [fault for fault in args.fault if fault.kind != "delay"]
    callbacks = [Strike(args.folder, args.fault, args.known), Inject(*strikes)]
    callbacks += [Delay(told, fault, args.rule["name"] in IN_LOCKSTEP) for fault in delays]
    images = digits.load("train")
    train = digits.image_source(images.inputs[:SAMPLES], images.targets[:SAMPLES], "some digits")
    result = Trainer(
        build,
        train,
        digits.load("validation"),
        callbacks=callbacks,
        rule=args.rule,
        exchange=args.exchange,
        data={"batch_size": BATCH},
        epochs=EPOCHS,
        checkpoint_every=5,
        stall_warning_s=1,
        stall_timeout_s=args.stall_timeout_s,
        progress="off",
        run_dir=str(args.folder / "run"),
    ).fit()
    if world.rank == 0:
        print(f"ACCURACY {result.summary['val_accuracy']:.4f}", flush=True)


main(parse())
