"""One failure, one message: the rank that failed says why and ends all others."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Protocol

from paceline.cluster.detect import Environment
from paceline.cluster.identity import JOB_DIR
from paceline.comm import World
from paceline.core.user_frames import show_trace
from paceline.errors import ConfigError, Interrupted, PacelineError
from paceline.runtime.job_dir import ELASTIC, EXIT_CODE, FAILED, notify_launcher
from paceline.runtime.watchdog.sections import step_of
from paceline.runtime.watchdog.thread import silence


class Abortable(Protocol):
    """A rank that can end all others: every World is one."""

    rank: int
    size: int
    node: str

    def abort(self, code: int = 1) -> NoReturn: ...


class Unconnected:
    """A rank of a job without MPI: the launcher ends the others when this one exits with an error.

    Ranks that communicate by other means (gloo) may notice earlier that this one is gone. So a rank
    waits a little before it reports an error: if another was the cause, it is ended meanwhile.
    """

    def __init__(self, environment: Environment) -> None:
        self.rank = environment.rank or 0
        self.size = environment.size
        self.node = socket.gethostname()

    def abort(self, code: int = 1) -> NoReturn:
        """Exit as Python does, but without finalizing the interpreter: threads of native code may
        still call into it, and if it is gone they end the process by SIGABRT."""
        try:
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
        finally:
            os._exit(code)


def fail(world: Abortable, error: BaseException) -> NoReturn:
    """Say once what went wrong and where, and end all ranks."""
    silence()
    try:
        wait_for_turn(world.rank + isinstance(world, Unconnected))
        if world.size > 1 and not is_first_to_report():
            time.sleep(_WAIT_FOR_END_S)  # the one that reported ends this rank, too
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stdout may be closed
            sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(describe(world, error))
            sys.stderr.flush()
        if os.environ.get(ELASTIC) == "1":  # mpirun may exit with 0
            notify_launcher(EXIT_CODE, str(exit_code(error)))
            notify_launcher(FAILED, "")  # MPI does not end ranks that have joined later
        if world.size > 1:
            time.sleep(_FORWARD_S)
    finally:
        world.abort(exit_code(error))


def wait_for_turn(rank: int) -> None:
    """Ranks often fail together, for one reason: the lowest reports it, and ends the others."""
    time.sleep(min(0.4 * rank, 2.4))


def is_first_to_report() -> bool:
    """Whether no other rank of this job on this node has reported an error.

    A busy machine may take longer to end the others than their turns are apart. Without a job
    directory this is unknown.
    """
    folder = os.environ.get(JOB_DIR)
    if not folder:
        return True
    try:
        (Path(folder) / "failure-reported").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # another node, or no space: better two messages than none
        return True
    return True


@contextlib.contextmanager
def ending_together(world: World) -> Iterator[None]:
    """Around work that all ranks do together: one that exits from it ends the others, too.

    Other exceptions may be caught further out, and if not, end all ranks there.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        if world.size == 1:
            raise
        fail(world, error)


def describe(world: Abortable, error: BaseException) -> str:
    """The message for an error: one line for ours, with the traceback for all others."""
    place = "" if world.size == 1 else f" on rank {world.rank} ({world.node}){_at_step(error)}"
    if isinstance(error, PacelineError):
        return f"{type(error).__name__}{place}: {error}\n"
    if isinstance(error, SystemExit):
        return f"paceline: exit with {error.code!r}{place}; all ranks were ended\n"
    if isinstance(error, KeyboardInterrupt):
        return f"paceline: interrupted{place}; all ranks were ended\n"
    return f"{show_trace(error)}paceline: {type(error).__name__}{place}; all ranks were ended\n"


def _at_step(error: BaseException) -> str:
    """Unless there was no step, or our own message has it."""
    step, is_named = step_of(error), isinstance(error, PacelineError) and " step " in str(error)
    return f" at step {step}" if step and not is_named else ""


def exit_code(error: BaseException) -> int:
    """2 for wrong settings, as in argparse; 130 for Ctrl-C; 75 for a run that has saved and can be
    resumed; the code of a SystemExit; else 1."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) and error.code else 1
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, Interrupted):
        return error.code
    return 2 if isinstance(error, ConfigError) else 1


def abort_on_exception(world: World) -> None:
    plain = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if world.size == 1 and not world.elastic:
            plain(kind, error, trace)
        else:
            fail(world, error)

    sys.excepthook = hook


_FORWARD_S = 0.2
"""Time for the launcher to forward a rank's message: Hydra drops it if the rank aborts at once."""

_WAIT_FOR_END_S = 5.0
"""How long a rank waits to be ended by the one that reported before it reports, too."""
