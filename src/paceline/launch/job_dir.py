"""The job directory in shared memory, and those that killed launchers left behind."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.cluster.identity import JOB_DIR
from paceline.core.private import opened_folder, read_text, remove_folder
from paceline.launch.job import Mpirun
from paceline.runtime.reaper import REAPER_PID, start_reaper

_SHARED_MEMORY = "/dev/shm"


@contextmanager
def shared_memory(mpirun: Mpirun) -> Iterator[dict[str, str]]:
    """Make the job directory in shared memory; it is removed when the job has ended.

    Ranks that are killed or aborted leave Open MPI's segments behind, megabytes each: so they are
    made there. So are the files of mpirun: one that was killed leaves them, and the next mpirun
    with the same pid would not start. Yields the variables that name the directory.
    """
    with make_job_dir() as folder:
        variables = {JOB_DIR: str(folder)}
        if mpirun.kind == "openmpi":
            variables["PRTE_MCA_prte_local_tmpdir_base"] = str(folder)
        # Ranks that srun starts may be of Open MPI, too; others do not know the variable.
        if mpirun.kind in ("openmpi", "srun") and folder.is_relative_to(_SHARED_MEMORY):
            variables["OMPI_MCA_btl_sm_backing_directory"] = str(folder)
        yield variables


@contextmanager
def make_job_dir() -> Iterator[Path]:
    usable = os.access(_SHARED_MEMORY, os.W_OK)
    if usable:
        remove_stale_job_dirs()
    with tempfile.TemporaryDirectory(
        prefix=f"paceline-{os.getpid()}-",
        dir=_SHARED_MEMORY if usable else None,
        ignore_cleanup_errors=True,
    ) as folder:
        yield Path(folder)


@contextmanager
def node_state() -> Iterator[Path | None]:
    """A folder in node memory that outlives the ranks; it is removed when this process ends, even
    if it is killed. None if there is no shared memory to use."""
    if not os.access(_SHARED_MEMORY, os.W_OK):
        yield None
        return
    with make_job_dir() as folder:
        with suppress(OSError):
            start_reaper(folder, os.getpid())
        yield folder


def remove_stale_job_dirs(unused_s: float = 60.0) -> None:
    """Remove the directories of launchers that were killed and could not do it themselves.

    A launcher in another container may share the memory but not our pids: its directory is spared
    while ranks may still be about to open their segments in it.
    """
    for place in Path(_SHARED_MEMORY).glob("paceline-*-*"):
        with (
            suppress(OSError),
            opened_folder(place) as opened,
        ):  # anybody may have put something else there
            unused = time.time() - os.fstat(opened).st_mtime >= unused_s
            pid = _read_reaper_pid(opened) or place.name.split("-")[1]
            if unused and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
                remove_folder(place)


def _read_reaper_pid(folder: int) -> str:
    """The pid of the process that removes the directory of a launcher on another host."""
    with suppress(FileNotFoundError):
        return read_text(REAPER_PID, folder)
    return ""
