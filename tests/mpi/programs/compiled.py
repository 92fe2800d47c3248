"""A tiny torch model by bsp, plain and through torch.compile: compiled.py FOLDER."""

import json
import sys

import numpy as np
import torch
from torch import nn

import paceline


def build():
    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 3))


def main(folder):
    world = paceline.init()
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(256, 20)).astype(np.float32)
    labels = (inputs @ rng.normal(size=(20, 3))).argmax(axis=1)
    outcomes = {}
    for name, compile in (("plain", False), ("compiled", True)):
        result = paceline.Trainer(
            build, (inputs, labels), (inputs[:64], labels[:64]), world=world, epochs=2,
            data={"batch_size": 32}, progress="off", run_dir=f"{folder}/{name}", compile=compile,
        ).fit()  # fmt: skip
        outcomes[name] = [[record.train_loss, record.val_loss] for record in result.history]
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    everyone = world.allgather_values(graphs)
    if world.rank == 0:
        print("OUTCOME", json.dumps({**outcomes, "graphs": everyone}), flush=True)


main(sys.argv[1])
