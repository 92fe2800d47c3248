"""How it ends: `python torch_backend_endings.py WHAT`."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from paceline.torch_backend import GroupError, monitored_barrier

SHORT, LONG = timedelta(seconds=0.25), timedelta(seconds=60)

what = sys.argv[1]
dist.init_process_group("mpi4py", timeout=LONG)
rank, size = dist.get_rank(), dist.get_world_size()
dist.barrier()


def expect(action, kind=GroupError):
    try:
        action()
    except kind as error:
        print(f"rank {rank} got: {error}", flush=True)
    else:
        raise AssertionError(f"rank {rank} got no error")


def check_in_late(group, other):
    """Rank 1 checks in when the others have given it up, and is not counted in the next."""
    if rank == 1:
        dist.barrier(group=other)
    expect(lambda: monitored_barrier(group, SHORT))
    if rank != 1:
        dist.barrier(group=other)
    dist.barrier(group=other)
    monitored_barrier(group, LONG)


def sum_alone(model, group):
    """Rank 0 alone has gradients to add, and its sum fails inside of DDP."""
    if rank == 0:
        group.set_timeout(SHORT)
        # C++ makes an error of its own of it.
        expect(lambda: model(torch.ones(1, 40)).sum().backward(), RuntimeError)


if what == "error":
    first, other, third = (dist.new_group() for _ in range(3))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 40), process_group=third)
    check_in_late(first, other)
    first.set_timeout(SHORT)
    if rank == 0:
        expect(lambda: dist.all_reduce(torch.ones(7), group=first))
        expect(lambda: dist.barrier(first))  # the ranks are at different places for good
        expect(lambda: dist.recv(torch.ones(1), 1, first, tag=5))
    sum_alone(model, third)
    dist.all_reduce(tensor := torch.ones(2), group=other)  # another group goes on
    assert tensor.tolist() == [size] * 2
    print("DONE", flush=True)
    dist.barrier(group=other)
    if rank == 1:
        raise ValueError("rank is unwell")
    dist.all_reduce(torch.ones(3), group=other)
elif what == "left" and rank != 1:
    dist.all_reduce(torch.ones(3))
