"""A folder that several processes of a node use, and that the last of them removes.

Each holds a shared lock on a file in it, which the kernel releases when its holder ends, however it
ends. A process that gets the exclusive lock may remove the folder. Run as a program, this file
waits for that lock; so it needs no package but Paceline.
"""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

if __name__ == "__main__":  # python -I -S knows no packages
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from paceline.core.private import make_folder, open_file, opened_folder

PREFIX = "paceline-cache-"
LOCK = "in-use"
_TRIES = 1000
_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def join(folder: Path) -> tuple[int, bool]:
    """Hold the folder, which is made if it is missing.

    Returns the descriptor that holds it, and whether it was made here.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_TRIES):  # until no other process removes it in between
        with suppress(FileNotFoundError):
            made = make_folder(folder)
            with opened_folder(folder) as opened:
                held = open_file(LOCK, os.O_RDWR | os.O_CREAT, opened)
            fcntl.flock(held, fcntl.LOCK_SH)
            if _is_at(held, folder / LOCK):
                return held, made
            os.close(held)
    raise OSError(errno.EAGAIN, "other processes keep removing it")


def remove_if_unused(folder: Path, wait: bool = False) -> bool:
    """Remove the folder if no process holds it, or with `wait` as soon as none does."""
    try:
        with opened_folder(folder) as opened:
            return _remove(folder, opened, wait)
    except FileNotFoundError:
        return True
    except OSError:  # it is in use, or belongs to another user
        return False


def _remove(folder: Path, opened: int, wait: bool) -> bool:
    try:
        held = open_file(LOCK, os.O_RDWR, opened)
    except FileNotFoundError:
        folder.rmdir()  # empty: its maker died at once, or is about to try again
        return True
    try:
        fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if not _is_at(held, folder / LOCK):
            return True
        # The lock last: what is left if this process is killed can still be locked, and removed.
        with os.scandir(opened) as entries:
            for name in [entry.name for entry in entries if entry.name != LOCK]:
                os.unlink(name, dir_fd=opened)
        os.unlink(LOCK, dir_fd=opened)
        folder.rmdir()
        return True
    finally:
        os.close(held)


def remove_stale(directory: Path) -> None:
    """Remove the folders that killed runs have left there."""
    with suppress(OSError):
        for folder in directory.glob(f"{PREFIX}*"):
            remove_if_unused(folder)


def start_reaper(folder: Path) -> None:
    """Start a process that removes the folder when all others that use it have ended."""
    # A job's launcher ends the processes that know the job's folder; this one must outlive it.
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PACELINE_")}
    nowhere = subprocess.DEVNULL
    with suppress(OSError):  # it is for the rare case that all ranks are killed
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(folder)],
            env=environ,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            cwd="/",
            start_new_session=True,
        )


def _is_at(descriptor: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


if __name__ == "__main__":
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    remove_if_unused(Path(sys.argv[1]), wait=True)
