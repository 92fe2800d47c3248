"""Collectives inside of what torch.compile compiles, and DDP around it."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from support.torch_backend_checks import run_checks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline.torch_backend  # noqa: F401

dist.init_process_group("mpi4py", timeout=timedelta(seconds=60))
RANK, SIZE = dist.get_rank(), dist.get_world_size()


def ddp():
    torch.manual_seed(1)
    first, last = nn.Linear(8, 32, bias=False), nn.Linear(32, 4)
    return DistributedDataParallel(nn.Sequential(first, nn.BatchNorm1d(32), nn.ReLU(), last))


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    numbers = torch.Generator().manual_seed(100 + RANK)
    for _ in range(5):
        model(torch.randn(6, 8, generator=numbers)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def check_a_compiled_model():
    compiled = train(torch.compile(ddp(), backend="aot_eager"))
    torch.testing.assert_close(compiled, train(ddp()), rtol=1e-6, atol=1e-6)


def check_compiled_collectives():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def compute(numbers):
        doubled = numbers * 2
        dist.all_reduce(doubled)
        return functional.all_reduce(doubled, "sum", dist.group.WORLD) + 1

    assert compute(torch.ones(3)).tolist() == [2.0 * SIZE**2 + 1] * 3


FOUND = run_checks(dict(globals()))
