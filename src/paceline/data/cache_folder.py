"""A folder that several processes of a node use, and that goes with the last of them.

Each of them holds a shared lock on a file in it, which the kernel takes back when its holder ends,
however it ends. Who gets that lock alone may remove the folder. Run as a program, this file waits
for that moment; so it imports the standard library alone.
"""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PREFIX = "paceline-cache-"
LOCK = "in-use"
_TRIES = 1000
_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def join(folder: Path) -> tuple[int, bool]:
    """Hold on to the folder, which is made unless it is there.

    Returns the descriptor that holds it, and whether it was made here.
    """
    for _ in range(_TRIES):  # until nobody removes it in between
        made = _make(folder)
        with suppress(FileNotFoundError):
            held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(held, fcntl.LOCK_SH)
            if _is_at(held, folder / LOCK):
                return held, made
            os.close(held)
    raise OSError(errno.EAGAIN, "others remove it again and again")


def remove_if_unused(folder: Path, wait: bool = False) -> bool:
    """Remove the folder if nobody holds on to it, or as soon as nobody does."""
    try:
        held = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        with suppress(OSError):
            folder.rmdir()  # empty: whoever made it died at once, or is about to try again
        return not folder.exists()
    try:
        fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if not _is_at(held, folder / LOCK):
            return True
        # The lock last: what is left if this process is killed can still be locked, and removed.
        for entry in folder.iterdir():
            if entry.name != LOCK:
                entry.unlink()
        (folder / LOCK).unlink()
        folder.rmdir()
        return True
    except OSError:  # somebody uses it, or it is somebody else's
        return False
    finally:
        os.close(held)


def remove_stale(directory: Path) -> None:
    """Remove the folders there that runs have left which were killed."""
    with suppress(OSError):
        for folder in directory.glob(f"{PREFIX}*"):
            remove_if_unused(folder)


def start_keeper(folder: Path) -> None:
    """Start a process that removes the folder when all others that use it have ended."""
    # A job's launcher ends the processes that know the job's folder; this one is to outlive it.
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PACELINE_")}
    nowhere = subprocess.DEVNULL
    with suppress(OSError):  # it is for the rare case: the run can do without
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(folder)],
            env=environ,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            cwd="/",
            start_new_session=True,
        )


def _make(folder: Path) -> bool:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


if __name__ == "__main__":
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    remove_if_unused(Path(sys.argv[1]), wait=True)
