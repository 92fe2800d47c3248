"""Starting programs from tests: on many ranks, and in a clean environment."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).parents[1]
FULL_MNIST = os.environ.get("PACELINE_DATA")
"""Where the full MNIST lies, for the tests that need it."""


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment without what a launcher, a scheduler or a user's shell may have set."""
    marks = (
        *("OMPI_", "PMI_", "PMIX_", "SLURM_", "PACELINE_", "PRTE_", "TORCHELASTIC_", "GLOO_"),
        *("MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_"),
        *("COLUMNS", "LINES"),  # xdist sets them for its workers
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith(marks)}
    return kept | {"PYTHONPATH": str(TESTS)} | changes


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
