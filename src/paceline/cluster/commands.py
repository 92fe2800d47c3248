"""Commands of this node: which there are, and what they answer. Nothing here waits long."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

_ANSWER_S = 10.0
"""How long a command may take to answer."""


def find_commands(names: Iterable[str]) -> dict[str, str]:
    """Which of these commands are on PATH, and where."""
    return {name: path for name in names if (path := shutil.which(name)) is not None}


def ask_srun(commands: Mapping[str, str]) -> list[str]:
    """The PMI plugins that srun lists; none without srun."""
    return parse_mpi_list(answer([commands["srun"], "--mpi=list"])) if "srun" in commands else []


def parse_mpi_list(text: str) -> list[str]:
    """Read `srun --mpi=list`, whose headings differ between versions of Slurm.

    >>> parse_mpi_list("MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n"
    ...                "specific pmix plugin versions available: pmix_v4")
    ['none', 'pmi2', 'pmix_v4']
    """
    lines = (line.removeprefix("srun:").strip() for line in text.splitlines())
    named = (line.rpartition(":")[2] if "available:" in line else line for line in lines)
    words = (word.strip() for line in named for word in line.split(","))
    return [word for word in words if word and " " not in word]


def answer(argv: Sequence[str], timeout_s: float = _ANSWER_S) -> str:
    """What a command prints, on stdout and stderr; empty if it fails or takes too long."""
    asked = _run(argv, timeout_s)
    return "" if asked is None or asked.returncode else asked.stdout + asked.stderr


def explain_failure(argv: Sequence[str], timeout_s: float = _ANSWER_S) -> str:
    """Why a command fails, by the first line of its stderr; empty if it succeeds."""
    asked = _run(argv, timeout_s)
    if asked is None:
        return f"no answer within {timeout_s:.0f} s"
    lines = [line.strip() for line in asked.stderr.splitlines() if line.strip()]
    return (lines or [f"exit code {asked.returncode}"])[0] if asked.returncode else ""


def _run(argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str] | None:
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
    return None
