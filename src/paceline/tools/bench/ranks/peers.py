"""The peers that ours is measured against, between the ranks of one of our worlds.

Nothing here starts anything when it is imported: MPI and gloo begin where they are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from paceline.comm import Buffer, World

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm
    from torch.distributed import Store

_TIMEOUT = timedelta(minutes=10)


@contextmanager
def gloo_group(world: World, address: str = "127.0.0.1", interface: str = "lo") -> Iterator[None]:
    """torch.distributed on gloo among the ranks of the world, inside the block.

    Rank 0's address and the interface of this rank are those through which ranks reach each other;
    the defaults are those of ranks on one machine.
    """
    import torch.distributed as dist

    # Else gloo uses the interface of the host's name, which may be a dead end.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    store = _open_store(world, address)
    dist.init_process_group(
        "gloo", store=store, rank=world.rank, world_size=world.size, timeout=_TIMEOUT
    )
    try:
        yield
        world.barrier()  # nobody disconnects while another still communicates
    finally:
        dist.destroy_process_group()


def _open_store(world: World, address: str) -> Store:
    """Rank 0 listens on a free port, and sends it to the others."""
    from torch.distributed import TCPStore

    store, port = None, 0
    if world.rank == 0:
        store = TCPStore(
            address, 0, world.size, is_master=True, wait_for_workers=False, timeout=_TIMEOUT
        )
        port = store.port
    port = world.bcast_value(port)
    return store or TCPStore(address, port, world.size, is_master=False, timeout=_TIMEOUT)


def raw_mpi() -> Intracomm:
    """All ranks' communicator as mpi4py has it, apart from Paceline's own; all ranks ask together.

    The world must be there already: it starts MPI the way Paceline needs it.
    """
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup()


def raw_sum(communicator: Intracomm, buffer: Buffer) -> Callable[[], None]:
    """MPI_Allreduce in place, as a user of mpi4py calls it, with nothing of ours around it."""
    from mpi4py import MPI

    return partial(communicator.Allreduce, MPI.IN_PLACE, buffer)
