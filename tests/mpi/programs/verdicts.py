"""Runs with something wrong on one rank, and what their verdicts say."""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager

import numpy as np
from torch import nn

from paceline import Callback, Trainer

STEPS, BATCH, STEP_S = 60, 4, 0.01
BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


def build():
    return nn.Linear(3, 1)


class Samples:
    """Samples that take a while to read."""

    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        time.sleep(self.seconds)
        return np.full(3, at % 5, np.float32), np.ones(1, np.float32)


class Work(Callback):
    """What a step costs a rank: seconds asleep, or computing."""

    def __init__(self, seconds, computes=False):
        self.seconds, self.computes = seconds, computes

    def on_batch_begin(self, trainer, step):
        seconds = self.seconds(step)
        if not self.computes:
            time.sleep(seconds)
            return
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass


@contextmanager
def core_taken(is_taken):
    """Two programs that never rest, on the core of this rank."""
    before = os.sched_getaffinity(0)
    core = max(before)
    loops = []
    try:
        if is_taken:
            os.sched_setaffinity(0, {core})
            argv = [sys.executable, "-c", BUSY, str(core)]
            loops = [subprocess.Popen(argv) for _ in range(2)]
        yield
    finally:
        os.sched_setaffinity(0, before)
        for loop in loops:
            loop.kill()
            loop.wait()


def train(world, fault, rule):
    """The verdict on a run of these ranks; with a fault on rank 1, or on each in turn."""
    slow = world.rank == 1
    seconds, computes, reading = (lambda step: STEP_S), False, 0.0
    if fault == "compute" and slow:
        seconds = lambda step: 3 * STEP_S  # noqa: E731
    elif fault == "data" and slow:
        reading = 3 * STEP_S / BATCH
    elif fault == "turns":
        seconds = lambda step: STEP_S * (1 + 2 * (step % world.size == world.rank))  # noqa: E731
    elif fault == "core" and slow:
        computes = True
    samples = Samples(STEPS * BATCH * world.size, reading)
    folder = world.bcast_value(tempfile.mkdtemp() if world.rank == 0 else None)
    with core_taken(computes):
        result = Trainer(
            build, samples, world=world, rule=rule, epochs=1, loss="mse", progress="off",
            data={"batch_size": BATCH, "shuffle": False}, run_dir=folder, optimizer={"lr": 0.001},
            callbacks=[Work(seconds, computes)],
        ).fit()  # fmt: skip
    return result.summary["verdict"]
