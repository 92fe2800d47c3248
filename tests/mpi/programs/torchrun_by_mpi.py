"""A script for torchrun with one word changed: it goes by MPI, in spite of MASTER_ADDR."""

import os

import torch
import torch.distributed as dist
from torchrun_script import listening

import paceline
import paceline.torch_backend
from paceline.cluster.detect import detect

dist.init_process_group("mpi4py")
total = torch.tensor([float(os.environ["RANK"]) + 1])
dist.all_reduce(total)
where = [place.split(":") for place in listening()]
inside = all(address.endswith("7F") for address, _ in where)
used = int(os.environ["MASTER_PORT"]) in [int(port, 16) for _, port in where]
word = f"sum {total.item():g} by {dist.get_backend()}, inside {inside}, port used {used}"
word += f", GPUs dealt {os.environ.get('PACELINE_ASSIGN_GPUS') != '0'}, {detect().kind}"
os.write(1, f"{word}, world of {paceline.init().size}\n".encode())
dist.destroy_process_group()
