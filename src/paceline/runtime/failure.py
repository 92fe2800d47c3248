"""One failure, one message: the rank that failed tells why and ends all others."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Protocol

from paceline.cluster.detect import Environment
from paceline.cluster.identity import JOB_DIR
from paceline.comm import World
from paceline.errors import ConfigError, Interrupted, PacelineError
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


def fail(world: Abortable, error: BaseException) -> NoReturn:
    """Say once what went wrong and where, and end all ranks."""
    silence()
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
    folder = os.environ.get(JOB_DIR)
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
def ending_together(world: World) -> Iterator[None]:
    """Around what all ranks do together: one that exits out of it ends the others, too.

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


_HAND_OVER_S = 0.2
"""Time for the launcher to pass on a rank's last words: Hydra drops them when it aborts at once."""

_LISTEN_S = 5.0
"""How long a rank that need not speak waits for its end before it speaks after all."""
