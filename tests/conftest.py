"""Ways to run a test on many ranks."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from paceline.launch.command import Job, render_command
from paceline.launch.local import find_mpirun, read_machine, shared_memory

TESTS = Path(__file__).parent
FULL_MNIST = os.environ.get("PACELINE_DATA")
"""Where the full MNIST lies, for the tests that need it."""


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment without what a launcher, a scheduler or a user's shell may have set."""
    marks = (
        *("OMPI_", "PMI_", "PMIX_", "SLURM_", "PACELINE_", "PRTE_", "TORCHELASTIC_", "GLOO_"),
        *("MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_"),
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith(marks)}
    return kept | {"PYTHONPATH": str(TESTS)} | changes


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests behave alike on a laptop and inside a job."""
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_logging_set_up() -> Iterator[None]:
    """Who trains sets up logging for the whole process; so may fixtures that came before."""
    logger = logging.getLogger("paceline")

    def reset() -> None:
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True

    reset()
    yield
    reset()


@pytest.fixture
def mpirun() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`mpirun(3, "program.py", "argument")`: a program of tests/mpi/programs under real mpirun."""

    def run(
        ranks: int, program: str, *arguments: str, timeout_s: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = str(TESTS / "mpi" / "programs" / program)
        job = Job(ranks, 1, (sys.executable, path, *map(str, arguments)))
        argv, extra = render_command(job, find_mpirun(), read_machine())
        with shared_memory(find_mpirun()) as place:
            return subprocess.run(
                argv,
                env=clean_environment(**place, **extra, **environment),
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )

    return run


def run_in_group(
    argv: Sequence[str | Path], timeout_s: float, **changes: str
) -> subprocess.CompletedProcess[str]:
    """A program that starts others by itself: at the time limit they are ended with it."""
    process = subprocess.Popen(
        list(map(str, argv)),
        env=clean_environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except BaseException:
        for kind in (signal.SIGTERM, signal.SIGKILL):  # mpirun ends its ranks at the first
            with suppress(ProcessLookupError):
                os.killpg(process.pid, kind)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def paceline(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`paceline("train", "mnist", "-n", "2")`: the command, as a user starts it."""

    def run(
        *arguments: str, timeout_s: float = 90, cwd: Path = tmp_path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        command = str(Path(sys.executable).parent / "paceline")
        return subprocess.run(
            [command, *map(str, arguments)],
            env=clean_environment(**environment),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    return run
