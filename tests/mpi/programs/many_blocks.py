"""keep_pace again and again, and two models at once."""

import numpy as np
import torch
from torch import nn

import paceline


def open_blocks(world, blocks, rule):
    """So many blocks of one step, one after the other."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(blocks):
        with paceline.keep_pace(model, optimizer, rule=rule, world=world):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    return blocks


def count_left(world, blocks, rule):
    """By how much so many blocks raise the number that MPI gives to the next communicator: it
    gives the lowest that is free."""
    open_blocks(world, 3, rule)  # what is made once and kept
    before = next_number(world)
    open_blocks(world, blocks, rule)
    return next_number(world) - before


def next_number(world):
    duplicate = world._comm.Dup()
    number = duplicate.py2f()
    duplicate.Free()
    return number


def train_two_at_once(world, overlap):
    """Two models with one backward before both steps, every rank a node of its own."""
    world.node_ranks = (world.rank,)
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(60, 900), nn.Tanh(), nn.Linear(900, 1)) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    x = torch.from_numpy(np.random.default_rng(world.rank).normal(size=(8, 60)).astype("float32"))
    exchange = {"overlap": overlap}
    with (
        paceline.keep_pace(models[0], optimizers[0], exchange=exchange, world=world),
        paceline.keep_pace(models[1], optimizers[1], exchange=exchange, world=world),
    ):
        for _ in range(20):
            for optimizer in optimizers:
                optimizer.zero_grad()
            sum(model(x).square().mean() for model in models).backward()
            for optimizer in optimizers:
                optimizer.step()
    return [float(p.detach().double().sum()) for model in models for p in model.parameters()]
