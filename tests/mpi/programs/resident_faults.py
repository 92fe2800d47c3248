"""What goes wrong in a call of the resident world, on one rank of it."""

import os
import time


def fail(world, rank):
    if world.rank == rank:
        print("about to fail", flush=True)
        raise ValueError("rank is unwell")
    world.barrier()


def hang(world, rank):
    if world.rank == rank:
        time.sleep(1000)
    world.barrier()


def vanish(world, rank):
    if world.rank == rank:
        os._exit(7)
    world.barrier()


def set_variable(world):
    os.environ["RESIDENT_TEST"] = "set"


def read_variable(world):
    return os.environ.get("RESIDENT_TEST")
