"""Starting a process that is to join: the program of this job, on one of its hosts or another."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from paceline.core.private import opened_folder, write_text
from paceline.errors import WorldError
from paceline.runtime.job_dir import ELASTIC, JOINS
from paceline.training.membership.requests import FOLDER

if TYPE_CHECKING:
    from paceline.comm.joining import Newcomer

_STARTING_S = 120.0
"""How long a process may take until it is in MPI; that is the first thing that it does."""
_ENVIRONMENT = "environment"
_OF_ONE_PROCESS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HOSTNAME", "PWD")
"""Variables of MPI's launcher, which gives each process its own, and of a host."""
_BEGIN = (
    "import json, os, sys; os.environ.update(json.load(open(sys.argv[1]))); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)
"""MPI gives the processes that it starts later none of our variables, and a command line can be
read by every user of the node; so they are in a private file."""


class Starter:
    """Lets MPI start newcomers, one after the other."""

    def __init__(self, run_dir: Path) -> None:
        self._desk, self._folder = run_dir.absolute() / FOLDER, Path.cwd()
        self._is_stuck = False

    def start(self, host: str | None) -> Newcomer:
        """A process on that host, or where MPI finds room; WorldError if it does not get into
        MPI. Takes a second or so."""
        from paceline.comm.joining import Newcomer

        if self._is_stuck:
            raise WorldError(
                "MPI has not finished starting an earlier process, so nobody can join this job any "
                "more; resume the run with as many ranks as you want"
            )
        with opened_folder(self._desk) as folder:
            write_text(_ENVIRONMENT, json.dumps(environment_of_newcomers(os.environ)), folder)
        place = str(self._desk / _ENVIRONMENT)
        command = [sys.executable, "-I", "-S", "-c", _BEGIN, place, *sys.orig_argv[1:]]
        found: list[Newcomer | WorldError] = []

        def start() -> None:
            try:
                found.append(Newcomer(command, self._folder, host))
            except WorldError as error:
                found.append(error)

        # MPI waits for ever for a process that has ended before it was in MPI.
        thread = Thread(target=start, name="paceline-start", daemon=True)
        thread.start()
        thread.join(_STARTING_S)
        if not found:
            self._is_stuck = True
            raise WorldError(
                f"the process has not started MPI within {_STARTING_S:.0f} s; see what it says in "
                "the output of the job"
            )
        if isinstance(found[0], WorldError):
            raise found[0]
        return found[0]


def environment_of_newcomers(ours: Mapping[str, str]) -> dict[str, str]:
    """
    >>> environment_of_newcomers({"A": "1", "OMPI_COMM_WORLD_RANK": "0"})
    {'A': '1', 'PACELINE_ELASTIC': 'joins', 'PACELINE_RANKS': '1'}
    """
    theirs = {name: value for name, value in ours.items() if not name.startswith(_OF_ONE_PROCESS)}
    return theirs | {ELASTIC: JOINS, "PACELINE_RANKS": "1"}
