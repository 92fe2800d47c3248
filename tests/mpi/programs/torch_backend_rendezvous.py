"""Rendezvous of torch groups over MPI, and messages that do not fit."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from paceline.cluster.network import outside_addresses, read_interfaces
from paceline.torch_backend import GroupError


def rendezvous_for_gloo(world):
    """The sum of gloo, made again by a group of mpi4py on the first and the last rank."""
    if outside_addresses(read_interfaces()):
        world.node_ranks = (world.rank,)  # as if every rank were on a node of its own
    dist.init_process_group("gloo", init_method="mpi4py://")
    tensor = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(tensor)
    some = dist.new_group([0, dist.get_world_size() - 1], backend="mpi4py")
    if some is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.all_reduce(tensor, group=some)
    alone = len(world.node_ranks) == 1
    assert (os.environ["GLOO_SOCKET_IFNAME"] == "lo") == (not alone)
    dist.destroy_process_group()
    return tensor.item()


def find_new_listeners(world):
    """The addresses at which this rank waits for others because of a group of gloo."""
    before = set(listening())  # MPICH's own ways to other ranks
    dist.init_process_group("gloo", init_method="mpi4py://")
    found = [address for address, _ in set(listening()) - before]
    dist.barrier()
    dist.destroy_process_group()
    return found


def listening():
    """The sockets of this process that wait for others: address and number."""
    files = list(Path("/proc/self/fd").iterdir())
    own = {str(file.readlink()) for file in files if file.is_symlink()}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in map(str.split, Path(table).read_text().splitlines()[1:]):
            if row[3] == "0A" and f"socket:[{row[9]}]" in own:
                yield row[1].partition(":")[0], row[9]


def receive_other_lengths(world):
    """What is said of messages that are longer, and shorter, than their receives."""
    dist.init_process_group("mpi4py", timeout=timedelta(seconds=60))
    said = []
    if dist.get_rank() == 0:
        for source, tag in ((None, 0), (1, 1)):
            with pytest.raises(GroupError) as caught:
                dist.recv(torch.ones(2), source, tag=tag)
            said.append(str(caught.value))
    else:
        dist.send(torch.ones(5), 0)
        dist.send(torch.ones(1), 0, tag=1)
    dist.barrier()  # the group goes on
    dist.destroy_process_group()
    return said
