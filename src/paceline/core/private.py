"""Private folders and files where other users write, too: /dev/shm, /tmp, caches.

Names there can be guessed or seen, so others may have put a link, a FIFO or a folder of their own
at one. What is opened here belongs to us, nobody else may write to it, links are not followed, and
nothing blocks. `NotOurs` is an OSError: callers that can do without the file catch it.

Programs that run without site-packages use this, too, so it imports only the standard library.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NEVER_WAIT_OR_FOLLOW = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotOurs(OSError):
    """Something is there that is not ours, or that others may write to."""


def make_folder(path: Path) -> bool:
    """Make a folder that only we can use; returns whether it is new. An old one must be ours."""
    try:
        path.mkdir(mode=0o700)
        return True
    except FileExistsError:
        with opened_folder(path):
            return False


@contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """A descriptor of our folder: operations by it stay there, even if the name is replaced."""
    folder = _open(path, os.O_RDONLY | os.O_DIRECTORY, None)
    try:
        _check(path, os.fstat(folder), stat.S_ISDIR, "a folder")
        yield folder
    finally:
        os.close(folder)


def open_file(path: Path | str, flags: int = os.O_RDONLY, folder: int | None = None) -> int:
    """Open a regular file of ours; `path` may be a name in an open `folder`."""
    file = _open(path, flags, folder)
    try:
        _check(path, os.fstat(file), stat.S_ISREG, "a plain file")
    except NotOurs:
        os.close(file)
        raise
    return file


def read_text(path: Path | str, folder: int | None = None) -> str:
    with os.fdopen(open_file(path, folder=folder), encoding="utf-8") as file:
        return file.read()


def write_text(path: Path | str, text: str, folder: int | None = None) -> None:
    """Write a file atomically: a reader sees the old text or the new one."""
    draft = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(open_file(draft, flags, folder), "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path, src_dir_fd=folder, dst_dir_fd=folder)


def remove_folder(path: Path) -> None:
    """Remove our folder with its content, as far as possible."""
    with suppress(OSError), opened_folder(path):
        shutil.rmtree(path, ignore_errors=True)


def _open(path: Path | str, flags: int, folder: int | None) -> int:
    try:
        return os.open(path, flags | _NEVER_WAIT_OR_FOLLOW, 0o600, dir_fd=folder)
    except OSError as error:
        # A link (ELOOP, or ENOTDIR for a folder), a FIFO opened for writing (ENXIO), or no
        # permission.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EACCES):
            raise NotOurs(errno.EPERM, _why(path, folder) or error.strerror, str(path)) from None
        raise


def _why(path: Path | str, folder: int | None) -> str:
    with suppress(OSError):
        found = os.stat(path, dir_fd=folder, follow_symlinks=False)
        if found.st_uid != os.geteuid():
            return _whose(found)
        if stat.S_ISLNK(found.st_mode):
            return "it is a link"
    return ""


def _check(
    path: Path | str, found: os.stat_result, is_kind: Callable[[int], bool], kind: str
) -> None:
    why = ""
    if found.st_uid != os.geteuid():
        why = _whose(found)
    elif not is_kind(found.st_mode):
        why = f"it is not {kind}"
    elif found.st_mode & _OTHERS_WRITE:
        why = f"others may write to it (mode {stat.S_IMODE(found.st_mode):o}, expected 700 or less)"
    if why:
        raise NotOurs(errno.EPERM, why, str(path))


def _whose(found: os.stat_result) -> str:
    return f"it belongs to user {found.st_uid}, not to {os.geteuid()}"
