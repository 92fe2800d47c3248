"""The job directory as ranks see it, and notifications from ranks to the launcher.

The launcher makes a directory in shared memory for what ranks leave there: segments of MPI, node
memory, notes for the launcher. On every other host the first rank makes one of the same name, and
starts a reaper that removes it when the job has ended there.
"""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path

from paceline.cluster.identity import JOB_DIR
from paceline.core.private import NotOurs, make_folder, opened_folder, write_text
from paceline.errors import LaunchError
from paceline.runtime.reaper import REAPER_PID, start_reaper

STARTED = "started"
"""In the job directory: a rank has started."""

CAN_SAVE = "saves"
"""In the job directory: made by ranks that save and stop at a SIGUSR1."""

HEARTBEATS = "heartbeats.json"
"""In the job directory: the last heartbeat of each rank that rank 0 has, by rank."""

ASKED_BY = "asked-by"
"""In the job directory: the signal at which the launcher asked the ranks to save and stop."""

RESTART = "PACELINE_RESTART"
"""The variable that holds how often the job has been restarted."""

ELASTIC = "PACELINE_ELASTIC"
"""The variable that is 1 where ranks may be lost and the others go on."""

AGAIN = "again"
"""Its value where a lost rank ends the others, and the launcher starts those that are left again;
in the launcher: do so though this MPI outlives its ranks."""

JOINS = "joins"
"""Its value in a process that was started to join such ranks, until it is one of them."""

HOSTS = "PACELINE_HOSTS"
"""The hosts that ranks of an elastic job may be on, as --hosts names them."""

FAILED = "failed"
"""In the job directory: a rank of an elastic run has failed, and with it the run."""

EXIT_CODE = "exitcode"
"""In the job directory: what the ranks of an elastic run exit with."""

NOTIFICATION = b"\x1epaceline "
"""Begins a line on stderr for the launcher: the name of a file, and what it shall hold."""


def prepare_job_dir() -> None:
    """Make this host's job directory, unless it exists; notify the launcher of our start."""
    folder = os.environ.get(JOB_DIR)
    if folder and Path(folder).parent.is_dir():
        _make_folder(Path(folder))
        notify_launcher(STARTED, "")


def _make_folder(folder: Path) -> None:
    try:
        if not make_folder(folder):
            return
        write_text(folder / REAPER_PID, "")  # from now on ranks here notify the launcher by stderr
    except NotOurs as error:
        raise LaunchError(
            f"the job directory {folder} on {socket.gethostname()} cannot be used: "
            f"{error.strerror}. Start the job again: it gets a directory of another name"
        ) from None
    except OSError:  # it cannot be made: ranks use /dev/shm itself
        return
    with suppress(OSError):
        write_text(folder / REAPER_PID, str(start_reaper(folder, os.getppid())))


def notify_launcher(name: str, text: str | None) -> None:
    """Write a file of that name for the launcher, or remove it (None)."""
    folder = os.environ.get(JOB_DIR)
    if not folder:
        return
    try:
        with opened_folder(Path(folder)) as opened:
            _write(name, text, opened)
            is_remote = os.access(REAPER_PID, os.F_OK, dir_fd=opened)
    except OSError:  # there is none on this host, or it is not ours
        return
    if is_remote and os.environ.get("PACELINE_RAW") != "1":
        _send(name, text)


def apply_notification(line: bytes, folder: Path | None) -> None:
    """In the launcher: write or remove the file that a rank of another host reports."""
    name, _, text = line.removeprefix(NOTIFICATION).decode(errors="replace").strip().partition(" ")
    if folder is None or not name.replace(".", "").isalnum():
        return
    with suppress(OSError), opened_folder(folder) as opened:
        _write(name, text[1:] if text else None, opened)


def note_for_ranks(folder: Path, name: str, text: str) -> None:
    """In the launcher: leave a file for the ranks of this host."""
    with suppress(OSError), opened_folder(folder) as opened:
        write_text(name, text, opened)


def read_note(name: str) -> str | None:
    """What the launcher has left for ranks of its host; None elsewhere."""
    folder = os.environ.get(JOB_DIR)
    try:
        return (Path(folder) / name).read_text() if folder else None
    except (OSError, ValueError):
        return None


def _write(name: str, text: str | None, folder: int) -> None:
    with suppress(OSError):
        if text is None:
            os.unlink(name, dir_fd=folder)
        else:
            write_text(name, text, folder)


def _send(name: str, text: str | None) -> None:
    # One write of less than PIPE_BUF bytes arrives in one piece; a longer one could be mixed with
    # other ranks' lines, so it is not sent.
    content = "" if text is None else f" ={text}"
    line = NOTIFICATION + f"{name}{content}\n".encode()
    if len(line) <= 4096 and line.count(b"\n") == 1:
        with suppress(OSError):
            os.write(2, line)


def read_heartbeats(folder: Path | None) -> dict[str, object]:
    """The last heartbeats of the ranks; empty if rank 0 has written nothing readable."""
    if folder is None:
        return {}
    try:
        known = json.loads((folder / HEARTBEATS).read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def read_exit_code(folder: Path | None) -> int | None:
    """What the ranks of an elastic run say; mpirun's own code may be that of a lost rank."""
    try:
        return int((folder / EXIT_CODE).read_text()) if folder is not None else None
    except (OSError, ValueError):
        return None
