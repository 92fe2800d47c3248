"""Every check of the collectives, with tensors that say they are a GPU's.

They go through a stand-in for the device: all that a machine without a GPU can show.
"""

import runpy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.far_tensors import FarTensor, faraway, nearby, plug_in

from paceline.torch_backend import collectives
from paceline.torch_backend.cuda_aware import is_cuda_aware, loaded_libraries

NAMES = (
    *("broadcast", "all_reduce", "reduce", "all_gather", "all_gather_single", "gather", "scatter"),
    *("all_to_all", "all_to_all_single", "reduce_scatter", "send", "receive"),
)


def over_the_device(function):
    """A collective that gets its tensors far away."""

    def steps(comms, *arguments):
        result = yield from function(comms, *map(send_away, arguments))
        return [nearby(tensor) for tensor in result]

    return steps


def send_away(value):
    if isinstance(value, list) and any(isinstance(item, torch.Tensor) for item in value):
        return [faraway(item) for item in value]
    return faraway(value)


def check_messages_that_mpi_takes_where_they_are():
    """As a CUDA-aware MPI would: by __cuda_array_interface__, without a copy."""
    device.takes_messages, before = True, (device.fetched, device.stored)
    came = torch.zeros(4)
    work = dist.irecv(FarTensor(came), (RANK - 1) % SIZE)
    dist.send(FarTensor(torch.full((4,), float(RANK))), (RANK + 1) % SIZE)
    work.wait()
    assert came.tolist() == [(RANK - 1) % SIZE] * 4
    assert (device.fetched, device.stored) == before
    empty = dist.irecv(FarTensor(torch.zeros(0)), (RANK - 1) % SIZE)
    dist.send(FarTensor(torch.zeros(0)), (RANK + 1) % SIZE)
    empty.wait()
    outputs = [torch.zeros(3) for _ in range(SIZE)]
    mine = [FarTensor(torch.full((3,), 10.0 * RANK + at)) for at in range(SIZE)]
    dist.all_to_all([FarTensor(output) for output in outputs], mine)
    assert [output[0].item() for output in outputs] == [10.0 * at + RANK for at in range(SIZE)]
    gaps = torch.zeros(2, 4)
    work = dist.irecv(FarTensor(gaps[:, ::2]), (RANK - 1) % SIZE)
    dist.send(FarTensor(torch.arange(8.0).reshape(4, 2)[::2].t()), (RANK + 1) % SIZE)
    work.wait()
    assert gaps.tolist() == [[0, 0, 4, 0], [1, 0, 5, 0]]
    exposed = device.exposed
    dist.all_reduce(FarTensor(tensor := torch.ones(7)))
    assert tensor.tolist() == [SIZE] * 7
    assert device.exposed == exposed > 0


device = plug_in()
with pytest.MonkeyPatch.context() as patch:
    for name in NAMES:
        patch.setattr(collectives, name, over_the_device(getattr(collectives, name)))
    end = dist.destroy_process_group
    # It goes on here.
    patch.setattr(dist, "destroy_process_group", lambda group=None: end(group) if group else None)
    program = Path(__file__).with_name("torch_backend_collectives.py")
    FOUND = {"passed": runpy.run_path(str(program))["FOUND"]}
print(f"fetched {device.fetched} stored {device.stored}", flush=True)
RANK, SIZE = dist.get_rank(), dist.get_world_size()
if SIZE > 1:
    check_messages_that_mpi_takes_where_they_are()
    FOUND |= {"exposed": device.exposed, "asked": [bool(loaded_libraries()), is_cuda_aware()]}
dist.destroy_process_group()
