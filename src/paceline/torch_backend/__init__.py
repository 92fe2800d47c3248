"""torch.distributed over MPI, with the PyTorch that pip installs.

Importing this registers the backend "mpi4py" and the rendezvous "mpi4py://":

    import paceline.torch_backend
    torch.distributed.init_process_group("mpi4py")

needs no address, port, rank or world size, under mpirun, srun or `paceline run`, or alone. It
starts MPI when the first group is made, not before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from paceline.cluster.gpus import SWITCH as DEAL_GPUS
from paceline.errors import LaunchError
from paceline.runtime.torchrun.address import is_chosen
from paceline.torch_backend.group import MPIGroup
from paceline.torch_backend.joined import is_joined, join, progress_engine
from paceline.torch_backend.rendezvous import meet
from paceline.torch_backend.work import GroupError

__all__ = ["BACKEND", "GroupError", "MPIGroup", "monitored_barrier"]

BACKEND = "mpi4py"


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """torch.distributed.monitored_barrier, which torch itself allows for gloo alone."""
    chosen = group or dist.group.WORLD
    if isinstance(timeout, float | int):  # torch takes seconds, too
        timeout = timedelta(seconds=timeout)
    if isinstance(chosen, MPIGroup):
        chosen.monitored_barrier(timeout, wait_all_ranks)
    else:
        _plain_monitored_barrier(group, timeout, wait_all_ranks)


def _make_group(options: Any, _: Any = None) -> MPIGroup:
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
            "and leave rank and world_size out of init_process_group"
        )
    comms = joined.open_comms(ranks or range(world.size), str(options.group_id))
    seconds = options.timeout.total_seconds()
    return MPIGroup(comms, progress_engine(), str(options.group_id), seconds)


def _meet_by_environment(url: str, **settings: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """env://, the default: by MPI where nobody but `paceline run` has named an address."""
    if os.environ.get("MASTER_ADDR") and not is_chosen(os.environ):
        plain: Iterator[tuple[dist.Store, int, int]] = _plain_environment(url, **settings)
        return plain
    return meet(url, **settings)


if "LOCAL_RANK" in os.environ:  # such programs choose their GPU by it, and must see all of them
    os.environ.setdefault(DEAL_GPUS, "0")
if BACKEND not in dist.Backend.backend_list:
    dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu", "cuda"])
    dist.register_rendezvous_handler(BACKEND, meet)
# A program may put ours in its place.
_plain_monitored_barrier = dist.monitored_barrier
# Named like a function of torch.distributed, which hides it.
_handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
_plain_environment = _handlers["env"]
_handlers["env"] = _meet_by_environment
