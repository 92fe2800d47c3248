"""What is left of a job: its processes, its folder, shared memory of MPICH.

The launcher clears it away itself. For the case that it is killed, it starts this file as a process
of its own, which waits for the launcher's end; so this file needs no package but Paceline. On other
hosts than the launcher's, a rank starts it as the keeper of the job's folder there.
"""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

if __name__ == "__main__":  # python -I -S knows no packages
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from paceline.core.private import remove_folder

SHARED_MEMORY = Path("/dev/shm")
JOB_DIR = "PACELINE_JOB_DIR"
"""As in `environment`, which cannot be imported here."""

REAPER_PID = "keeper"
"""In the job's folder on other hosts: the number of the process that will remove it."""

_FOLDER = "PACELINE_UNDERTAKES"
"""The variable that names the folder: unlike a command line, other users cannot read it."""

_GRACE_S = 3.0
"""How long mpirun, which got a SIGTERM when the launcher died, has to end its ranks."""

_PAUSE_S = 0.05
_PARENT_PAUSE_S = 0.5
_NOBODY = -1
"""No session: the members of a job are known by its folder alone."""
_DONE = b"done"
_MPICH_SEGMENT = re.compile(r"mpich_shm_[0-9a-f]+_\d+")
_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Reaper:
    """The launcher's hold on the process that clears up if the launcher cannot."""

    def __init__(self, hold: IO[bytes] | None = None) -> None:
        self._hold = hold

    def tell_session(self, session: int) -> None:
        """Name the session whose processes are to be ended."""
        self._say(b"%d\n" % session)

    def dismiss(self) -> None:
        """Everything is cleared away already."""
        self._say(_DONE)

    def _say(self, words: bytes) -> None:
        if self._hold is not None:
            with suppress(OSError):
                self._hold.write(words)
                self._hold.flush()


@contextmanager
def reaper_beside(folder: Path | None, since_s: float | None) -> Iterator[Reaper]:
    """Have a process ready that removes `folder` if this one is killed.

    With `since_s`, the time at which the job was started, segments of MPICH go, too.
    """
    if folder is None or not Path("/proc/self").exists():
        yield Reaper()
        return
    try:
        process = _start(folder, [] if since_s is None else [str(since_s)], subprocess.PIPE)
    except OSError:  # it is for the rare case: the job can do without
        yield Reaper()
        return
    assert process.stdin is not None
    held = Reaper(process.stdin)
    try:
        yield held
    finally:
        held.dismiss()
        with suppress(OSError):
            process.stdin.close()
        process.wait()


def start_keeper(folder: Path, parent: int) -> int:
    """Start a process that removes the folder when `parent` has ended; its number."""
    return _start(folder, [f"parent={parent}"], subprocess.DEVNULL).pid


def _start(folder: Path, words: list[str], stdin: int) -> "subprocess.Popen[Any]":
    # Processes that know the folder as their job's are ended with it.
    environ = {name: value for name, value in os.environ.items() if name != JOB_DIR}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *words],
        env=environ | {_FOLDER: str(folder)},
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # what ends the job, or reaches it from the terminal, spares it
    )


def kill_job(session: int, folder: Path | None) -> None:
    """Kill every process of the job."""
    # The group of the leader is all that can be found where there is no /proc.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    for pid in members(session, folder):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def members(session: int, folder: Path | None) -> Iterator[int]:
    """The processes of a job: those of its session, and those that know its folder.

    Ranks of Open MPI have process groups of their own but share the session; those of Hydra have
    sessions of their own.
    """
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        with suppress(OSError):
            if os.getsid(pid) == session or _knows(entry, folder):
                yield pid


def _knows(process: Path, folder: Path | None) -> bool:
    """Whether the process was started with this folder as its job's."""
    if folder is None:
        return False
    mark = f"{JOB_DIR}={folder}".encode()
    with suppress(PermissionError):
        return mark in (process / "environ").read_bytes().split(b"\0")
    return False


def remove_segments(since_s: float) -> None:
    """Remove what aborted ranks of MPICH have left in the shared memory since then.

    The segments carry no job's name. So one is removed if it is ours, not older than the job, and
    no process maps it: those of another job that runs are mapped by its ranks.
    """
    left = [path for path in SHARED_MEMORY.glob("mpich_shm_*") if _is_left(path, since_s)]
    if not left:
        return
    mapped = _mapped_files()
    for path in left:
        if str(path) not in mapped:
            path.unlink(missing_ok=True)


def _is_left(path: Path, since_s: float) -> bool:
    if _MPICH_SEGMENT.fullmatch(path.name) is None:
        return False
    with suppress(OSError):
        facts = path.stat()
        return facts.st_uid == os.geteuid() and facts.st_mtime >= since_s
    return False


def _mapped_files() -> set[str]:
    """The files of the shared memory that any process we may look into has mapped."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            lines = maps.read_text(errors="replace").splitlines()
            found |= {line.split()[-1] for line in lines if f" {SHARED_MEMORY}/" in line}
    return found


def end_session(session: int, folder: Path) -> None:
    """Kill what is left of the session and of those that know the folder, after some grace.

    A session keeps its number as long as it has a process; later it may be that of another.
    """
    if not _wait_until_gone(session, folder, _GRACE_S):
        kill_job(session, folder)
        _wait_until_gone(session, folder, _GRACE_S)


def _wait_until_gone(session: int, folder: Path, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while any(True for _ in members(session, folder)):
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE_S)
    return True


def main(more: str | None = None) -> None:
    """Wait for the launcher's end; clear up, unless it said that it has done so itself."""
    folder = Path(os.environ[_FOLDER])
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    if more is not None and more.startswith("parent="):
        keep(folder, int(more.removeprefix("parent=")))
        return
    *sessions, last = sys.stdin.buffer.read().split(b"\n")
    if last == _DONE:
        return
    for session in map(int, sessions):
        end_session(session, folder)
    remove_folder(folder)
    if more is not None:
        remove_segments(float(more))


def keep(folder: Path, parent: int) -> None:
    """Stay until the process that started the ranks of this host is gone; then clear up after it.

    That is the launcher's daemon here (or Slurm's), which outlives its ranks. Ranks that do not
    end with it have lost their launcher.
    """
    _wait_for_end(parent)
    _wait_until_gone(_NOBODY, folder, _GRACE_S)
    for pid in members(_NOBODY, folder):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    remove_folder(folder)


def _wait_for_end(pid: int) -> None:
    """Sleep until the process has ended."""
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):
            select.select([os.pidfd_open(pid)], [], [])
            return
    while Path(f"/proc/{pid}").exists():
        time.sleep(_PARENT_PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
