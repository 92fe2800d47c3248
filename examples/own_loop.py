"""Your own PyTorch loop on many ranks.

paceline run -n 2 -- examples/own_loop.py
"""

import torch

import paceline
from paceline.data import digits
from paceline.models.mnist import MNISTNetwork

world = paceline.init()
model = MNISTNetwork()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
batches = paceline.shard(digits.load("train"), batch_size=64, to=torch.from_numpy)

with paceline.keep_pace(model, optimizer, rule="bsp"):
    for epoch in range(3):
        for images, labels in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()  # gradients are averaged over all ranks here
        print(f"epoch {epoch + 1} on rank {world.rank} of {world.size}: loss {loss.item():.4f}")
