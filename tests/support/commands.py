"""The command `paceline`, as a user starts it: a process that starts others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from support.ranks import clean_environment

PACELINE = str(Path(sys.executable).with_name("paceline"))
_PATIENCE_S = 15.0


@contextmanager
def started(argv: Sequence[object], cwd: Path, **changes: str) -> Iterator[subprocess.Popen[str]]:
    """The program with its output in pipes; it and what it started end with the block."""
    process = subprocess.Popen(
        list(map(str, argv)),
        cwd=cwd,
        env=clean_environment(**changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            _end(process)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _end(process: subprocess.Popen[str]) -> None:
    """A launcher ends its ranks at the second signal; at its death by the third they end, too."""
    for kind in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_PATIENCE_S)
            return


def run(
    *words: object, cwd: Path, timeout_s: float = 110, **changes: str
) -> subprocess.CompletedProcess[str]:
    """`run("train", "mnist", cwd=folder)`: the command, and what came of it."""
    return run_program([PACELINE, *words], cwd, timeout_s, **changes)


def run_program(
    argv: Sequence[object], cwd: Path, timeout_s: float = 110, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Another program, in the same way."""
    with started(argv, cwd, **changes) as process:
        out, err = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for(
    event: Callable[[], bool], process: subprocess.Popen[str], limit_s: float = 90
) -> None:
    """Until it is true, while the process lives; the limit is for a hang."""
    end = time.monotonic() + limit_s
    while not event():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)
