"""torch.distributed over MPI, with the PyTorch that pip installs.

Importing this registers the backend "mpi4py" and the rendezvous "mpi4py://":

    import paceline.torch_backend
    torch.distributed.init_process_group("mpi4py")

needs no address, port, rank or world size, under mpirun, srun or `paceline run`, or in a single
process. MPI starts with the first group, not before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from paceline.cluster.gpus import SWITCH as ASSIGN_GPUS
from paceline.errors import LaunchError
from paceline.runtime.torchrun.address import is_chosen
from paceline.torch_backend.group import MPIGroup
from paceline.torch_backend.joined import is_joined, join, progress_engine
from paceline.torch_backend.rendezvous import mpi_rendezvous
from paceline.torch_backend.work import GroupError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions

__all__ = ["BACKEND", "GroupError", "MPIGroup", "monitored_barrier"]

BACKEND = "mpi4py"


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """torch.distributed.monitored_barrier, which torch itself supports for gloo only."""
    chosen = group or dist.group.WORLD
    if isinstance(timeout, float | int):  # torch accepts seconds, too
        timeout = timedelta(seconds=timeout)
    if isinstance(chosen, MPIGroup):
        chosen.monitored_barrier(timeout, wait_all_ranks)
    else:
        _torch_monitored_barrier(group, timeout, wait_all_ranks)


def _make_group(options: _DistributedBackendOptions, _: object = None) -> MPIGroup:
    ranks = list(options.global_ranks_in_group)
    if ranks and not is_joined() and len(ranks) < dist.get_world_size():
        raise LaunchError(
            "a group of some ranks cannot be the first that uses MPI. Make the first group with "
            "init_process_group('mpi4py') or with init_method='mpi4py://'"
        )
    joined = join()
    world = joined.world
    if not ranks and (options.group_rank, options.group_size) != (world.rank, world.size):
        raise LaunchError(
            f"this is rank {options.group_rank} of {options.group_size} by RANK and WORLD_SIZE, "
            f"and rank {world.rank} of {world.size} in MPI. Start with `paceline run` or mpirun, "
            "and omit rank and world_size in init_process_group"
        )
    comms = joined.open_comms(ranks or range(world.size), str(options.group_id))
    seconds = options.timeout.total_seconds()
    return MPIGroup(comms, progress_engine(), str(options.group_id), seconds)


def _env_rendezvous(url: str, **settings: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """env://, the default: by MPI, unless someone other than `paceline run` has set an address."""
    if os.environ.get("MASTER_ADDR") and not is_chosen(os.environ):
        found: Iterator[tuple[dist.Store, int, int]] = _torch_env_handler(url, **settings)
        return found
    return mpi_rendezvous(url, **settings)


if "LOCAL_RANK" in os.environ:  # torchrun scripts choose their GPU by it, so they must see all GPUs
    os.environ.setdefault(ASSIGN_GPUS, "0")
if BACKEND not in dist.Backend.backend_list:
    dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu", "cuda"])
    dist.register_rendezvous_handler(BACKEND, mpi_rendezvous)
# Kept here, since a program may replace it by ours.
_torch_monitored_barrier = dist.monitored_barrier
# Not by attribute: a function of torch.distributed hides the module of the same name.
_handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
_torch_env_handler = _handlers["env"]
_handlers["env"] = _env_rendezvous
