"""A run that loses ranks: rank 0 of those that are left prints what came of it, as JSON."""

import hashlib
import json
import os
import sys
from itertools import groupby

import torch
from support import tiny_problem
from torch import nn

import paceline
from paceline.comm import elastic
from paceline.errors import Interrupted
from paceline.frameworks.torch import slice_optimizer
from paceline.testing import Fault, Inject
from paceline.training.callbacks import Callback

slice_optimizer.CHUNK_ELEMENTS = 1000  # so that a rank has several chunks to move


class Watch(Callback):
    """What a user's callback sees; and the end of a run that is to go on elsewhere."""

    def __init__(self, stop_after):
        self.stop_after, self.calls = stop_after, []
        self.sizes, self.steps = [], []

    def on_train_begin(self, trainer):
        self.calls.append("train")

    def on_epoch_begin(self, trainer, epoch):
        self.calls.append(f"begin {epoch}")

    def on_epoch_end(self, trainer, epoch, logs):
        self.calls.append(f"end {epoch}")

    def on_batch_end(self, trainer, step, logs):
        self.sizes.append(trainer.world.size)
        self.steps.append(step)
        if step == self.stop_after:
            trainer.interrupt()


def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 200), nn.Tanh(), nn.Linear(200, 40), nn.Linear(40, 1))


def main():
    given = json.loads(sys.argv[1])
    per_node = given.pop("ranks_per_node", 0)
    if per_node:
        node = int(os.environ["OMPI_COMM_WORLD_RANK"]) // per_node
        elastic._identify_node = lambda name: node
    given["elastic"] = {"min": given.pop("min_ranks", 1)}
    faults = [Fault.parse(text) for text in given.pop("faults", [])]
    watch = Watch(given.pop("stop_after", 0))
    given.setdefault("optimizer", {"name": "adam", "lr": 0.01})
    given.setdefault("progress", "off")
    trainer = paceline.Trainer(
        build, *tiny_problem.make_data(), loss="mse",
        data={"batch_size": 5}, callbacks=[watch, Inject(*faults)], **given,
    )  # fmt: skip
    try:
        result = trainer.fit()
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        sys.exit(stop.code)
    if trainer.world.rank == 0:
        vector = torch.nn.utils.parameters_to_vector(result.model.parameters())
        print(json.dumps({
            "parameters": hashlib.sha256(vector.detach().numpy().tobytes()).hexdigest(),
            "losses": [record.train_loss for record in result.history],
            "val_losses": [record.val_loss for record in result.history],
            "samples": [record.samples for record in result.history],
            "sizes": [size for size, _ in groupby(watch.sizes)],
            "left": trainer.world.size, "steps": watch.steps, "calls": watch.calls,
        }))  # fmt: skip


if __name__ == "__main__":
    main()
