"""Clean up after a job: its processes, its directory, shared memory of MPICH.

The launcher does it itself. In case the launcher is killed, it starts this file as a process of its
own, which waits for the launcher's end; so this file imports no package but Paceline. On other
hosts a rank starts it, to remove the job directory there.
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
from typing import IO

if __name__ == "__main__":  # python -I -S knows no packages
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from paceline.core.private import remove_folder

SHARED_MEMORY = Path("/dev/shm")
JOB_DIR = "PACELINE_JOB_DIR"
NODE_STATE = "PACELINE_NODE_STATE"
"""As in `cluster.identity`, which loads more than this program needs."""

REAPER_PID = "reaper.pid"
"""In the job directory on other hosts: the pid of the process that will remove it."""

_FOLDER = "PACELINE_REAPED_DIR"
"""The variable that names the directory: unlike a command line, other users cannot read it."""

_GRACE_S = 3.0
"""How long mpirun, which gets a SIGTERM when the launcher dies, has to end its ranks."""

_PAUSE_S = 0.05
_PARENT_PAUSE_S = 0.5
_NO_SESSION = -1
"""No session: the members of a job are known by its directory alone."""
_DONE = b"done"
_MPICH_SEGMENT = re.compile(r"mpich_shm_[0-9a-f]+_\d+")
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Reaper:
    """The launcher's end of the pipe to the process that cleans up if the launcher cannot."""

    def __init__(self, pipe: IO[bytes] | None = None) -> None:
        self._pipe = pipe

    def set_session(self, session: int) -> None:
        """Name the session whose processes it shall end."""
        self._send(b"%d\n" % session)

    def dismiss(self) -> None:
        """Everything is cleaned up already."""
        self._send(_DONE)

    def _send(self, message: bytes) -> None:
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.write(message)
                self._pipe.flush()


@contextmanager
def reaper_beside(folder: Path | None, since_s: float | None) -> Iterator[Reaper]:
    """Keep a process ready that removes `folder` if this one is killed.

    With `since_s`, the time at which the job was started, it removes segments of MPICH, too.
    """
    if folder is None or not Path("/proc/self").exists():
        yield Reaper()
        return
    try:
        process = _start(folder, [] if since_s is None else [str(since_s)], subprocess.PIPE)
    except OSError:  # it is for a rare case: the job can do without
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


def start_reaper(folder: Path, parent: int) -> int:
    """Start a process that removes the folder when `parent` has ended; return its pid."""
    return _start(folder, [f"parent={parent}"], subprocess.DEVNULL).pid


def _start(folder: Path, arguments: list[str], stdin: int) -> "subprocess.Popen[bytes]":
    # Without these: processes that have them are ended with the job.
    environ = {n: value for n, value in os.environ.items() if n not in (JOB_DIR, NODE_STATE)}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *arguments],
        env=environ | {_FOLDER: str(folder)},
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # signals to the job, or from the terminal, spare it
    )


def kill_job(session: int, folder: Path | None) -> None:
    """Kill every process of the job."""
    # Where there is no /proc, only the launcher's process group can be found.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    for pid in members(session, folder):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def members(session: int, folder: Path | None) -> Iterator[int]:
    """The processes of a job: those of its session, and those whose JOB_DIR is its directory.

    Ranks of Open MPI have process groups of their own but share the session; those of Hydra have
    sessions of their own.
    """
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        with suppress(OSError):
            if os.getsid(pid) == session or _belongs_to(entry, folder):
                yield pid


def _belongs_to(process: Path, folder: Path | None) -> bool:
    """Whether the process was started with this directory as its JOB_DIR or NODE_STATE."""
    if folder is None:
        return False
    marks = {f"{name}={folder}".encode() for name in (JOB_DIR, NODE_STATE)}
    with suppress(PermissionError):
        return not marks.isdisjoint((process / "environ").read_bytes().split(b"\0"))
    return False


def remove_segments(since_s: float) -> None:
    """Remove what aborted ranks of MPICH have left in shared memory since then.

    Segments do not name their job. So one is removed if it is ours, not older than the job, and
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
    """Kill what is left of the job after a grace period.

    A session keeps its id as long as it has a process; afterwards the id may be reused.
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
    """Wait for the launcher's end; clean up, unless it said that it has done so itself."""
    folder = Path(os.environ[_FOLDER])
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if more is not None and more.startswith("parent="):
        clean_up_after(folder, int(more.removeprefix("parent=")))
        return
    *sessions, last = sys.stdin.buffer.read().split(b"\n")
    if last == _DONE:
        return
    for session in map(int, sessions):
        end_session(session, folder)
    remove_folder(folder)
    if more is not None:
        remove_segments(float(more))


def clean_up_after(folder: Path, parent: int) -> None:
    """Wait for the end of the process that started the ranks on this host; then clean up.

    That process is the launcher's daemon here (or Slurm's), which outlives its ranks. Ranks that do
    not end with it have lost their launcher.
    """
    _wait_for_end(parent)
    _wait_until_gone(_NO_SESSION, folder, _GRACE_S)
    for pid in members(_NO_SESSION, folder):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    _wait_until_gone(_NO_SESSION, folder, _GRACE_S)  # one that writes on would keep the folder
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
