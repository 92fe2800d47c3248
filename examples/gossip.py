"""Gossip: no server, no waiting; now and then a worker sends its weights to a random peer.

paceline run -n 2 -- examples/gossip.py

Takes a few seconds. At the end all replicas become their weighted mean.
"""

import numpy as np
import torch
from torch import nn

import paceline
from paceline.data import digits
from paceline.models.mnist import MNISTNetwork

world = paceline.init()
model = MNISTNetwork()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
batches = paceline.shard(digits.load("train"), batch_size=64, to=torch.from_numpy)
test = digits.load("validation").take(np.arange(2000))


def accuracy() -> float:
    model.eval()
    with torch.no_grad():
        found = model(torch.from_numpy(test.inputs)).argmax(1).numpy()
    model.train()
    return (found == test.targets).mean()


# After each step a worker sends its weights to a random peer with this probability. A higher one
# keeps the replicas closer together, for more bytes.
with paceline.keep_pace(model, optimizer, rule=paceline.Gossip(probability=0.1)):
    for _ in range(3):
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    print(f"rank {world.rank} for itself: val accuracy {accuracy():.4f}")

if world.rank == 0:  # after the block all ranks have the same model
    print(f"all together: val accuracy {accuracy():.4f}")
