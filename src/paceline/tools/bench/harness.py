"""Start the ranks of a benchmark, and get their result."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.cluster.cores import THREAD_VARIABLES, available_cores, threads_per_rank
from paceline.cluster.detect import detect
from paceline.comm import World
from paceline.errors import LaunchError
from paceline.launch.job import Job
from paceline.launch.mpirun import start
from paceline.launch.supervise import supervise_command

_TASK, _ANSWER = "task.json", "answer.json"


def run_ranks(
    program: str,
    ranks: int,
    settings: Mapping[str, object],
    *,
    threads: int | None = None,
    timeout_s: float = 1800,
    elastic: bool = False,
) -> Any:
    """Start `ranks` ranks of the function 'package.module:function'; return what rank 0's returns.

    The function takes the world and the settings; both settings and result must be JSON. Ranks
    write to our stderr, a Ctrl-C ends them, and one that fails ends all with an error here.
    """
    if detect().launched:
        raise LaunchError(
            f"{detect().kind} started this as one of {detect().size} ranks, but a benchmark starts "
            "its own; call it once, without mpirun or srun"
        )
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        command = write_task(Path(folder), program, settings, timeout_s)
        code = _start(command, ranks, threads, elastic)
        if code == 130:
            raise KeyboardInterrupt
        if code != 0:
            raise LaunchError(
                f"the ranks of {program} ended with exit code {code}; their messages are above"
            )
        return read_answer(Path(folder))


def write_task(
    folder: Path, program: str, settings: Mapping[str, object], timeout_s: float
) -> tuple[str, ...]:
    """Store what the ranks shall do; return the command that each of them runs."""
    task = {"program": program, "settings": settings, "timeout_s": timeout_s}
    (folder / _TASK).write_text(json.dumps(task))
    return (sys.executable, "-m", "paceline.tools.bench", str(folder))


def read_task(folder: Path) -> tuple[str, dict[str, object], float]:
    """The program, its settings, and the seconds after which it is taken to hang."""
    task = json.loads((folder / _TASK).read_text())
    return task["program"], task["settings"], task["timeout_s"]


def write_answer(folder: Path, answer: object) -> None:
    (folder / _ANSWER).write_text(json.dumps(answer))


def read_answer(folder: Path) -> Any:
    """What rank 0 returned."""
    return json.loads((folder / _ANSWER).read_text())


def say(world: World, text: str) -> None:
    """Show progress, from rank 0 alone."""
    if world.rank == 0:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _start(command: tuple[str, ...], ranks: int, threads: int | None, elastic: bool) -> int:
    """Run the command on the ranks; one rank runs as `-n 1` does elsewhere: without MPI."""
    fair = threads_per_rank(ranks, available_cores())
    with _threads(threads):
        if ranks > 1:
            return start(Job(ranks, threads or fair, command, elastic=elastic))
        default = dict.fromkeys(THREAD_VARIABLES, str(fair))
        return supervise_command(command, {**default, **os.environ, "PACELINE_RANKS": "1"})


@contextmanager
def _threads(threads: int | None) -> Iterator[None]:
    """The option wins over what the shell has set, while the ranks run."""
    names = THREAD_VARIABLES if threads else ()
    before = {name: os.environ.get(name) for name in names}
    os.environ |= dict.fromkeys(names, str(threads))
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
