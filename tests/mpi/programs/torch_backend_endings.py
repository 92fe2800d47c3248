"""How it ends: `python torch_backend_endings.py WHAT`."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import paceline.torch_backend
from paceline.launch.node import outside_addresses, read_interfaces

what = sys.argv[1]


def listening():
    """The sockets of this process that wait for others: address and number."""
    files = list(Path("/proc/self/fd").iterdir())
    own = {str(file.readlink()) for file in files if file.is_symlink()}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in map(str.split, Path(table).read_text().splitlines()[1:]):
            if row[3] == "0A" and f"socket:[{row[9]}]" in own:
                yield row[1].partition(":")[0], row[9]


if what == "loopback":
    paceline.init()
    of_mpi = set(listening())  # MPICH's own ways to other ranks
    dist.init_process_group("gloo", init_method="mpi4py://")
    for address, _ in set(listening()) - of_mpi:
        print(f"listens at {address}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit()

if what == "gloo":
    world = paceline.init()
    if outside_addresses(read_interfaces()):
        world.node_ranks = (world.rank,)  # as if every rank were on a node of its own
    dist.init_process_group("gloo", init_method="mpi4py://")
    tensor = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(tensor)
    some = dist.new_group([0, dist.get_world_size() - 1], backend="mpi4py")
    if some is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.all_reduce(tensor, group=some)
    print(f"sum {tensor.item()}", flush=True)
    alone = len(world.node_ranks) == 1
    assert (os.environ["GLOO_SOCKET_IFNAME"] == "lo") == (not alone)
    dist.destroy_process_group()
    sys.exit()

dist.init_process_group("mpi4py", timeout=timedelta(seconds=30 if what == "long" else 2))
rank, size = dist.get_rank(), dist.get_world_size()
dist.barrier()


def expect(action, kind=paceline.torch_backend.GroupError):
    try:
        action()
    except kind as error:
        print(f"rank {rank} got: {error}", flush=True)
    else:
        raise AssertionError(f"rank {rank} got no error")


def check_in():
    paceline.torch_backend.monitored_barrier(timeout=timedelta(seconds=2))


if what == "late":
    pair = dist.new_group(list(range(size)), timeout=timedelta(seconds=60))
    if rank == 1:
        time.sleep(3)  # who comes too late is not counted in the next
    expect(check_in)
    dist.barrier(group=pair)
    check_in()
    if rank == 0:
        expect(lambda: dist.all_reduce(torch.ones(7)))
        expect(dist.barrier)  # the ranks are at different places for good
        expect(lambda: dist.recv(torch.ones(1), 1, tag=5))
    dist.all_reduce(tensor := torch.ones(2), group=pair)  # another group goes on
    assert tensor.tolist() == [size] * 2
    print("DONE", flush=True)
    dist.barrier(group=pair)
    paceline.init().abort(3)  # what was given up is still under way
elif what == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 40))
    if rank == 0:  # the other has no gradients to add
        # C++ makes one of its own of it.
        expect(lambda: model(torch.ones(1, 40)).sum().backward(), RuntimeError)
        print("DONE", flush=True)
        paceline.init().abort(3)
    time.sleep(60)
elif what == "long":
    if rank == 0:
        expect(lambda: dist.recv(torch.ones(2)))
        expect(lambda: dist.recv(torch.ones(2), 1, tag=1))
    else:
        dist.send(torch.ones(5), 0)
        dist.send(torch.ones(1), 0, tag=1)
    dist.barrier()  # the group goes on
    print("DONE", flush=True)
    dist.destroy_process_group()
elif what == "raise":
    if rank == 1:
        raise ValueError("rank is unwell")
    dist.all_reduce(torch.ones(3))
elif what == "left" and rank != 1:
    dist.group.WORLD.set_timeout(timedelta(seconds=60))
    dist.all_reduce(torch.ones(3))
