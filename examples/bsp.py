"""BSP: gradients are averaged in every step, so all replicas stay equal to the last bit.

paceline run -n 2 -- examples/bsp.py

Takes a few seconds. The 64 samples of each step are divided among the ranks, so any number of ranks
gives the same losses up to rounding: try -n 1 and -n 4.
"""

import numpy as np
import torch
from torch import nn

import paceline
from paceline.data import digits

world = paceline.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
batches = paceline.shard(digits.load("train"), batch_size=64 // world.size, to=torch.from_numpy)

with paceline.keep_pace(model, optimizer, rule=paceline.BSP()) as pace:
    for _ in range(4):
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()  # gradients are averaged over all ranks here
    pace.check()  # compares a hash of the weights; raises if any rank differs
    time = pace.time()

if world.rank == 0:
    print(f"{world.size} equal replicas; {time.shares()['wait']:.0%} of the time spent waiting")
    test = digits.load("validation").take(np.arange(2000))
    found = model(torch.from_numpy(test.inputs)).argmax(1).numpy()
    print(f"val accuracy {(found == test.targets).mean():.4f}")
