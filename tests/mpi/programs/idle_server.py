"""Rank 0 thinks for two seconds between two exchanges; the server, rank 1, tells what it used."""

import time

import torch

import paceline

world = paceline.init()
model = torch.nn.Linear(100, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with paceline.keep_pace(model, optimizer, rule=paceline.EASGD(every=1, servers=1)) as pace:
    began, used = time.perf_counter(), time.process_time()
    if world.rank in pace.workers:
        for _ in range(2):
            model(torch.ones(1, 100)).sum().backward()
            optimizer.step()
            time.sleep(2)
if world.rank == 1:
    share = (time.process_time() - used) / (time.perf_counter() - began)
    print(f"SHARE {share:.4f}", flush=True)
