"""Small all-reduces over three groups among messages: `torch_backend_stress.py ROUNDS`.

Nothing waits forever, the memory stays flat, and no operation is left in progress.
"""

import gc
import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import paceline.torch_backend  # noqa: F401
from paceline.torch_backend.joined import progress_engine

ROUNDS = int(sys.argv[1])
PAGE_BYTES = 4096
ALLOWED_BYTES = 8 * 2**20

dist.init_process_group("mpi4py")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
GROUPS = [dist.group.WORLD, dist.new_group(), dist.new_group([0, SIZE - 1])]
MINE = [group for group in GROUPS if group is not dist.GroupMember.NON_GROUP_MEMBER]
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def one_round(number, chance):
    """Every group once, in an order of this rank's own, and a message to the neighbour."""
    order = chance.sample(range(len(MINE)), len(MINE))
    tensors = [torch.full((1 + number % 7,), float(RANK)) for _ in MINE]
    works = [dist.all_reduce(tensors[at], group=MINE[at], async_op=True) for at in order]
    came, goes = torch.empty(3), torch.full((3,), float(number))
    works += [dist.irecv(came, LEFT, tag=number % 5), dist.isend(goes, RIGHT, tag=number % 5)]
    chance.shuffle(works)
    for work in works:
        work.wait()
    assert came.tolist() == [number] * 3
    for tensor, group in zip(tensors, MINE, strict=True):
        members = range(SIZE) if dist.get_world_size(group) == SIZE else (0, SIZE - 1)
        assert tensor[0].item() == sum(members), (number, tensor)


chance = random.Random(RANK)
done, early = 0, 0
while done < ROUNDS:
    one_round(done, chance)
    done += 1
    if done == ROUNDS // 4:
        gc.collect()
        early = resident()
gc.collect()
grown = resident() - early
assert grown < ALLOWED_BYTES, f"{grown} bytes more than after a quarter of the rounds"
assert progress_engine().count == 0
assert not progress_engine()._lost
dist.barrier()
for group in MINE:
    comm = group._comms.message_comm
    assert not comm._comm.Iprobe(), "a message is left"
print(f"DONE {ROUNDS} rounds, {grown / 2**20:.1f} MB more", flush=True)
FOUND = ROUNDS
if __name__ == "__main__":
    # A program may end without destroying its groups, and with a message nobody waited for.
    dist.barrier()
    left = dist.isend(torch.ones(3), RIGHT)
    dist.recv(torch.ones(3), LEFT)
else:
    dist.destroy_process_group()
