"""Sends buffers that are longer than one call of MPI takes, with the limits set low."""

import numpy as np
import pytest
from contract import world_checks

import paceline

world = paceline.init()

from paceline.comm import mpi  # noqa: E402

mpi.MAX_ELEMENTS, mpi.MAX_MESSAGE = 5, 3
calls = [
    world_checks.broadcast_gives_the_roots_values,
    world_checks.neighbours_pass_messages_on_a_ring,
    world_checks.pieces_are_exchanged_all_to_all,
]
for check in calls:
    check(world)
send = np.arange(7 * world.size) + 100 * world.rank
receive = np.zeros_like(send)
world.all_to_all(send, receive)
mine = np.arange(7 * world.rank, 7 * world.rank + 7)
assert receive.tolist() == [x + 100 * rank for rank in range(world.size) for x in mine]
for post in (world.expect, world.dispatch):
    with pytest.raises(ValueError, match="4 elements, and MPI takes at most 3"):
        post(np.zeros(4), 0)
world.barrier()
if world.rank == 0:
    print("passed", flush=True)
