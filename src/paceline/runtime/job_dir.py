"""A job's folder on hosts other than the launcher's, and word from there to the launcher.

The launcher makes a folder in its shared memory for what the job's ranks leave there: segments of
MPI, node memory, word for the launcher. On every other host the first rank makes one of the same
name, and starts a keeper (see reaper.py) that removes it when the job has ended there.
"""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.cluster.identity import JOB_DIR
from paceline.core.private import NotOurs, make_folder, opened_folder, write_text
from paceline.errors import LaunchError
from paceline.runtime.reaper import REAPER_PID, start_keeper

STARTED = "started"
"""In the job's folder: a rank has come to life."""

NOTIFICATION = b"\x1epaceline "
"""Begins a line on stderr that is for the launcher: a name, and what the file of it shall hold."""


def prepare_job_dir() -> None:
    """Make this host's folder of the job, unless it is there; tell the launcher that we live."""
    folder = os.environ.get(JOB_DIR)
    if folder and Path(folder).parent.is_dir():
        _make_folder(Path(folder))
        notify_launcher(STARTED, "")


def _make_folder(folder: Path) -> None:
    try:
        if not make_folder(folder):
            return
        write_text(folder / REAPER_PID, "")  # others here send word to the launcher from now on
    except NotOurs as error:
        raise LaunchError(
            f"the job's folder {folder} on {socket.gethostname()} cannot be used: "
            f"{error.strerror}. Start the job again: it gets a folder of another name"
        ) from None
    except OSError:  # it cannot be made: ranks do without, and use the shared memory itself
        return
    with suppress(OSError):
        write_text(folder / REAPER_PID, str(start_keeper(folder, os.getppid())))


def notify_launcher(name: str, text: str | None) -> None:
    """Leave a file of that name for the launcher, or take it away again (`None`)."""
    folder = os.environ.get(JOB_DIR)
    if not folder:
        return
    try:
        with opened_folder(Path(folder)) as opened:
            _leave(name, text, opened)
            is_away = os.access(REAPER_PID, os.F_OK, dir_fd=opened)
    except OSError:  # there is none on this host, or none of ours
        return
    if is_away and os.environ.get("PACELINE_RAW") != "1":
        _send(name, text)


def apply_notification(line: bytes, folder: Path | None) -> None:
    """In the launcher: do here what a rank of another host has said it did there."""
    name, _, text = line.removeprefix(NOTIFICATION).decode(errors="replace").strip().partition(" ")
    if folder is None or not name.replace(".", "").isalnum():
        return
    with suppress(OSError), opened_folder(folder) as opened:
        _leave(name, text[1:] if text else None, opened)


def _leave(name: str, text: str | None, folder: int) -> None:
    with suppress(OSError):
        if text is None:
            os.unlink(name, dir_fd=folder)
        else:
            write_text(name, text, folder)


def _send(name: str, text: str | None) -> None:
    # One write of less than PIPE_BUF bytes arrives in one piece; a longer one could be mixed with
    # other ranks' lines, and is not worth it.
    said = "" if text is None else f" ={text}"
    line = NOTIFICATION + f"{name}{said}\n".encode()
    if len(line) <= 4096 and line.count(b"\n") == 1:
        with suppress(OSError):
            os.write(2, line)


CAN_SAVE = "saves"
"""In the job's folder: made by ranks that save and stop at a SIGUSR1."""


PULSE = "pulse.json"
"""In the job's folder: what rank 0 last knew of each rank, by its number."""


def read_pulse(folder: Path | None) -> dict[str, Any]:
    """What rank 0 last knew of the ranks; empty if it has written nothing that can be read."""
    if folder is None:
        return {}
    try:
        pulse = json.loads((folder / PULSE).read_text())
    except (OSError, ValueError):
        return {}
    return pulse if isinstance(pulse, dict) else {}


RESTART = "PACELINE_RESTART"
"""The variable that tells the ranks how often their job has been started again."""
