"""Asynchronous rules: nobody waits for a rank that stands still, and nothing is left behind."""

import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from support.numpy_network import build

import paceline
from paceline import Callback, Trainer
from paceline.comm import wait_until
from paceline.observe import read_events

SAMPLES, BATCH, EPOCHS = 600, 10, 10
MEANWHILE = SAMPLES // BATCH
"""Steps that the others make while rank 1 stands still: an epoch."""
HANG_S = 60


class Steps(Callback):
    """Counts the steps of each worker, where all of them see it."""

    def __init__(self, world, workers):
        self._memory = world.node_memory(2 * 8 * world.size)
        self.made, self.meanwhile = self._memory.bytes.view(np.int64).reshape(2, -1)
        self.workers = list(range(workers))

    def on_batch_end(self, trainer, step, logs):
        self.made[trainer.world.rank] += 1

    def wait(self, condition, what):
        """Sleep until it is true: not for ever, so that a hang is told by its cause."""
        end = time.monotonic() + HANG_S

        def done():
            assert time.monotonic() < end, f"{what} never came; steps made: {self.made}"
            return condition()

        wait_until(done)


class StandStill(Steps):
    """Every worker makes a step, then rank 1 stands still until the others have gone on."""

    def on_batch_end(self, trainer, step, logs):
        super().on_batch_end(trainer, step, logs)
        rank = trainer.world.rank
        if self.made[rank] > 1:
            return
        self.wait(lambda: self.made[self.workers].min() > 0, "the first step of every worker")
        if rank == 1:
            self.wait(lambda: self.made.sum() - 1 >= MEANWHILE, "an epoch of the others")


def train(world, run_dir, rule, exchange, every_rank_a_node):
    """What rank 0 got, whether all ranks got it, the samples of each rank, the messages left."""
    steps = StandStill(world, world.size - exchange.get("servers", 0))
    if every_rank_a_node:
        world.node_ranks = (world.rank,)
    inputs = np.random.default_rng(0).normal(size=(SAMPLES, 20)).astype(np.float32)
    targets = inputs[:, :1] - inputs[:, 1:2]
    momentum = 0.0 if rule["name"] == "downpour" else 0.9  # momentum on stale pushes diverges
    result = Trainer(
        partial(build, 20, 300, lr=0.005, momentum=momentum),  # beyond one eager send
        (inputs, targets), (inputs[:50], targets[:50]), world=world, rule=rule,
        exchange=exchange, epochs=EPOCHS, progress="off", callbacks=[steps],
        data={"batch_size": BATCH}, run_dir=run_dir,
    ).fit()  # fmt: skip
    world.barrier()
    left = world._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
    everyone = world.allgather_values((result.model.parameters().tobytes(), left))
    events = [e for e in read_events(Path(run_dir) / "events") if e["event"] == "step"]
    return {
        "equal": len({weights for weights, _ in everyone}) == 1,
        "left": [left for _, left in everyone],
        "samples": [
            sum(e["samples"] for e in events if e["rank"] == rank) for rank in range(world.size)
        ],
        "val_losses": [record.val_loss for record in result.history],
        "bytes": sum(event["bytes"] for event in events),
    }


class ValidateLong(Steps):
    """Rank 0 is not through with its first validation before the others have gone on.

    `meanwhile` counts their steps since it began. Before that they make two epochs at most, and
    none makes all the steps that there are for all.
    """

    def on_batch_end(self, trainer, step, logs):
        super().on_batch_end(trainer, step, logs)
        rank = trainer.world.rank
        if rank == 0:
            return
        if self.meanwhile[0]:
            self.meanwhile[rank] += 1
            if self.meanwhile[rank] == 5:
                self.wait(self.have_gone_on, "steps of the other")
        elif self.made.sum() >= 60:
            self.wait(lambda: self.meanwhile[0], "the validation of rank 0")

    def on_validation_end(self, trainer, logs):
        if trainer.world.rank == 0 and not self.meanwhile[0]:
            self.meanwhile[0] = 1
            self.wait(self.have_gone_on, "steps of the others")

    def have_gone_on(self):
        return self.meanwhile[1:].min() >= 5


def validate_long(world, run_dir, rule):
    """The steps of each rank, in a run in which rank 0 validates until the others have gone on."""
    steps = ValidateLong(world, world.size)
    inputs = np.random.default_rng(0).normal(size=(300, 50)).astype(np.float32)
    Trainer(
        lambda: build(50, 400, lr=0.01, momentum=0.9),
        (inputs, inputs[:, :1]), (inputs[:10], inputs[:10, :1]), world=world, rule=rule, epochs=10,
        progress="off", callbacks=[steps], data={"batch_size": 10}, run_dir=run_dir,
    ).fit()  # fmt: skip
    world.barrier()
    return steps.made.tolist()


def idle_server(world, idle_s):
    """The share of a core that the server, rank 1, takes while rank 0 thinks between exchanges."""
    model = torch.nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rule, exchange = paceline.EASGD(every=1), {"servers": 1}
    with paceline.keep_pace(model, optimizer, rule=rule, exchange=exchange) as pace:
        began, used = time.perf_counter(), time.process_time()
        if world.rank in pace.workers:
            for _ in range(2):
                model(torch.ones(1, 100)).sum().backward()
                optimizer.step()
                time.sleep(idle_s)
    return (time.process_time() - used) / (time.perf_counter() - began)
