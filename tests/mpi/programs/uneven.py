"""Loops on samples of uneven cost: dealt, split by speeds, and by costs that are learned.

As a program: `uneven.py HOW` deals samples, and rank 1 fails in that way while it holds some.
"""

import os
import signal
import sys
from time import sleep

import numpy as np
import torch
from torch import nn

import paceline

SAMPLES, GLOBAL_BATCH = 45, 9
NODES = {
    "one": lambda world: world.node_ranks,
    "each": lambda world: (world.rank,),
    "two": lambda world: (
        (world.size - 1,) if world.rank == world.size - 1 else tuple(range(world.size - 1))
    ),
}


def build():
    model = nn.Linear(3, 1)
    rng = np.random.default_rng(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
    return model


def inputs():
    return torch.from_numpy(np.random.default_rng(0).normal(size=(SAMPLES, 3)).astype(np.float32))


def step_plainly(steps):
    """The steps of all ranks together, in one process."""
    model, x = build(), inputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for members in zip(*steps, strict=True):
        chosen = [at for own in members for at in own]
        optimizer.zero_grad()
        model(x[chosen]).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach().numpy() for parameter in model.parameters()]


def deal(world, nodes):
    """Whether each sample was with one rank in each epoch, and how far weights are from those of
    one process."""
    real, world.node_ranks = world.node_ranks, NODES[nodes](world)
    model, x, steps = build(), inputs(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = list(range(SAMPLES))
    with paceline.keep_pace(model, optimizer, world=world):
        dealt = paceline.deal(numbers, GLOBAL_BATCH, world=world)
        for _ in range(2):
            for batch in dealt:
                optimizer.zero_grad()
                own = []
                for at in batch:
                    model(x[at]).pow(2).mean().backward()
                    own.append(at)
                optimizer.step()
                steps.append(own)
    world.node_ranks = real
    everyone = world.allgather_values(steps)
    seen = sorted(at for own in everyone for step in own for at in step)
    expected = step_plainly(everyone)
    pairs = zip(model.parameters(), expected, strict=True)
    apart = max(float(np.abs(p.detach().numpy() - e).max()) for p, e in pairs)
    return {"once": seen == sorted(numbers * 2), "apart": apart}


def follow_speeds(world):
    """The samples of each rank in each step; rank 1 becomes three times slower in the middle."""
    model, counts = build(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = np.ones((600, 3), np.float32)
    batches = paceline.shard(data, 10, speeds="measured", to=torch.from_numpy, world=world)
    with paceline.keep_pace(model, optimizer, world=world):
        for step, x in enumerate(batches):
            sleep(0.003 * len(x) * (3 if world.rank == 1 and step >= 10 else 1))
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            counts.append(len(x))
            if step == 24:
                break
    return world.allgather_values(counts)


def learn(world):
    """The mean cost of a rank in a step over the largest, in two epochs of samples that nobody
    knows anything of."""
    costs = np.random.default_rng(5).choice([0.01, 0.02, 0.04, 0.08], 60)
    model, ratios = build(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = paceline.shard(np.arange(60.0), 1, cost="learned", world=world)
    with paceline.keep_pace(model, optimizer, world=world):
        for _ in range(2):
            mine = []
            for number in batches:
                cost = costs[int(number[0])]
                sleep(cost)
                optimizer.zero_grad()
                model(torch.ones(1, 3)).mean().backward()
                optimizer.step()
                mine.append(float(cost))
            loads = np.array(world.allgather_values(mine))
            ratios.append(float(loads.mean(axis=0).sum() / loads.max(axis=0).sum()))
    return ratios


def fail(how):
    world = paceline.init()
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with paceline.keep_pace(model, optimizer):
        for number, batch in enumerate(paceline.deal(list(range(1000)), GLOBAL_BATCH)):
            optimizer.zero_grad()
            if world.rank != 1:
                sleep(0.05)  # rank 1 takes some first, sooner or later
            for _ in batch:
                if world.rank == 1 and number >= 2:
                    if how == "exception":
                        raise ValueError("this sentence is bad")
                    os.kill(os.getpid(), signal.SIGKILL)
                model(torch.ones(3)).mean().backward()
            optimizer.step()


if __name__ == "__main__":
    fail(sys.argv[1])
