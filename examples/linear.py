"""Your own synchronous loop, on any number of processes and nodes.

It differs from a loop for one process by two calls of paceline, and needs no address or port. With
--hosts a:16,b:16 it runs on those machines over ssh; with `submit slurm --nodes 2
--ranks-per-node 16 --` before `run` it is a batch job.

paceline run -n 2 -- examples/linear.py
"""

import sys

import torch
from torch import nn

import paceline


def run(rank: int, steps: int) -> float:
    torch.manual_seed(1234)
    data, target = torch.ones(1, 500).uniform_(), torch.ones(1, 500).uniform_()
    model = nn.Linear(500, 500)  # y = Wx + b
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)

    with paceline.keep_pace(model, optimizer):  # averages gradients in optimizer.step
        for step in range(steps):
            loss = torch.mean((model(data) - target) ** 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 100 == 0:
                print(f"step {step:,}: {loss.item():.2e}", flush=True)
    return loss.item()


if __name__ == "__main__":
    world = paceline.init()
    loss = run(world.rank, int(sys.argv[1]) if len(sys.argv) > 1 else 500)
    print(f"rank {world.rank} of {world.size} on {world.node}: loss {loss:.4f}", flush=True)
