"""A user's own loop on many ranks."""

import numpy as np
import torch
from torch import nn

import paceline


def train(world, batch_size, extra):
    """The weights of each rank; in the end a rank takes `extra` steps more than the one below."""
    torch.manual_seed(world.rank)  # ranks start unequal; keep_pace makes them equal
    model = nn.Linear(10, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(101, 10)).astype(np.float32), rng.integers(0, 3, 101))
    batches = paceline.shard(data, batch_size=batch_size, to=torch.from_numpy)
    with paceline.keep_pace(model, optimizer):
        for _ in range(2):
            for x, y in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        for _ in range(extra * world.rank):  # uneven loops must not hang
            optimizer.zero_grad()
            model(torch.ones(1, 10)).sum().backward()
            optimizer.step()
    return torch.cat([p.detach().ravel() for p in model.parameters()]).tolist()
