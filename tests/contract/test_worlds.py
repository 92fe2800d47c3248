"""The World's contract in threads and alone; tests/mpi runs the same table under mpirun."""

import threading
import time

import numpy as np
import pytest
from support.world_checks import CHECKS

from paceline.comm import SoloWorld, current_world, run_world, wait_until
from paceline.errors import WorldError


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_world_of_threads(check, size):
    run_world(size, check, timeout_s=20)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_world_of_one(check):
    check(SoloWorld())


def test_results_come_in_rank_order():
    assert run_world(4, lambda world: world.rank * 10) == [0, 10, 20, 30]


@pytest.mark.parametrize("wait", ["barrier", "all_reduce", "irecv", "part"])
def test_a_failing_rank_wakes_all_who_wait(wait):
    def program(world):
        try:
            part = world.split(0)
            if world.rank == 2:
                raise ValueError("rank two is unwell")
            if wait == "barrier":
                world.barrier()
            elif wait == "all_reduce":
                world.all_reduce(np.zeros(3))
            elif wait == "irecv":
                wait_until(world.irecv(np.zeros(1), 2).done)
            else:
                part.barrier()
        except WorldError as error:
            heard.append(str(error))
            raise

    heard: list[str] = []
    began = time.monotonic()
    with pytest.raises(ValueError, match="unwell"):
        run_world(3, program)
    assert time.monotonic() - began < 30
    assert heard == ["rank 2 failed: ValueError: rank two is unwell"] * 2


def test_abort_ends_all_ranks():
    def program(world):
        if world.rank == 0:
            world.abort(3)
        world.barrier()

    with pytest.raises(WorldError, match="rank 0 aborted the world with code 3"):
        run_world(2, program)


def test_ranks_that_never_end_are_named():
    release = threading.Event()
    with pytest.raises(WorldError, match=r"ranks \[1\] still ran after 0.2 s"):
        run_world(2, lambda world: release.wait() if world.rank else None, timeout_s=0.2)
    release.set()


def test_each_thread_finds_its_own_world():
    assert run_world(3, lambda world: current_world.get() is world) == [True] * 3
    assert current_world.get() is None


def test_a_rank_alone_has_nobody_to_talk_to():
    world = SoloWorld()
    with pytest.raises(WorldError, match="alone and cannot send to rank 1"):
        world.isend(np.zeros(1), 1)
    with pytest.raises(WorldError, match="nobody will send"):
        world.irecv(np.zeros(1))
