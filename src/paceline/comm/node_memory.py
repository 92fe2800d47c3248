"""Memory shared by the ranks of a node, and the locks that guard it."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from paceline.comm.world import T, World
from paceline.core.private import open_file as open_own_file
from paceline.errors import WorldError

PREFIX = "node-memory-"
"""How the names of the files begin, for the moment in which they have names."""

_PAGE = 4096
_JOB_DIR = "OMPI_MCA_btl_sm_backing_directory"
_SHARED_MEMORY = "/dev/shm"
_FLOCK = struct.Struct("hhqqi0q")
"""Linux's struct flock: type, whence, start, length, process."""


class ProcessMemory:
    """Node memory of a single rank, or of ranks that are threads."""

    def __init__(self, memory: npt.NDArray[np.uint8], mutexes: Sequence[threading.Lock]) -> None:
        self.bytes, self._mutexes = memory, mutexes

    def hold(self, lock: int) -> AbstractContextManager[None]:
        return self._mutexes[lock]  # type: ignore[return-value]  # its `with` gives True, not None

    def close(self) -> None:
        self.bytes = np.empty(0, np.uint8)


def reserve(nbytes: int, locks: int) -> tuple[npt.NDArray[np.uint8], list[threading.Lock]]:
    """Zeroed memory of this process, and its locks."""
    try:
        memory = np.zeros(nbytes + _PAGE, np.uint8)
    except (MemoryError, ValueError):
        raise WorldError(f"{nbytes} bytes of memory are needed, and there are fewer") from None
    start = -memory.ctypes.data % _PAGE
    return memory[start : start + nbytes], [threading.Lock() for _ in range(locks)]


class FileMemory:
    """Node memory of ranks that are processes: an unlinked file that all of them map."""

    def __init__(self, file: int, nbytes: int, locks: int) -> None:
        self._file = file
        self._map = mmap.mmap(file, max(nbytes, 1))
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, nbytes)
        self._holds = [_Hold(file, lock) for lock in range(locks)]

    def hold(self, lock: int) -> AbstractContextManager[None]:
        return self._holds[lock]

    def close(self) -> None:
        if self._file < 0:
            return
        self.bytes = np.empty(0, np.uint8)
        self._holds = []
        with contextlib.suppress(BufferError):  # views remain: the last one unmaps it
            self._map.close()
        os.close(self._file)
        self._file = -1


class _Hold:
    """One lock: a byte of the open file, which the kernel releases when its holder dies.

    The threads of a rank share its open file, so a mutex of the process comes first.
    """

    def __init__(self, file: int, lock: int) -> None:
        self._file, self._lock, self._mutex = file, lock, threading.Lock()
        self._acquire, self._release = (
            _FLOCK.pack(kind, os.SEEK_SET, lock, 1, 0) for kind in (fcntl.F_WRLCK, fcntl.F_UNLCK)
        )

    def __enter__(self) -> None:
        self._mutex.acquire()
        try:
            if _BY_OPEN_FILE:
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLKW, self._acquire)
            else:
                fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self._lock)
        except BaseException:
            self._mutex.release()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if _BY_OPEN_FILE:
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, self._release)
            else:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._lock)
        finally:
            self._mutex.release()


_BY_OPEN_FILE = hasattr(fcntl, "F_OFD_SETLKW")
"""Linux has locks that belong to an open file; elsewhere they belong to the process."""


def find_place() -> Path:
    """Where to create node memory: if possible in the job directory, which the launcher removes.

    That directory exists on the launcher's node alone.
    """
    folder = os.environ.get(_JOB_DIR, "")
    if folder and Path(folder).is_dir():
        return Path(folder)
    if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
        return Path(_SHARED_MEMORY)
    return Path(tempfile.gettempdir())


def make_file(place: Path, nbytes: int) -> Path:
    """A file of zeros whose space is reserved: if it ran out later, a SIGBUS would follow."""
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    if nbytes > free:
        raise WorldError(_too_much(place, nbytes, free))
    file, name = tempfile.mkstemp(prefix=PREFIX, dir=place)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, max(nbytes, 1))
        else:
            os.ftruncate(file, max(nbytes, 1))
    except OSError:
        Path(name).unlink()
        raise WorldError(_too_much(place, nbytes, free)) from None
    finally:
        os.close(file)
    return Path(name)


def _too_much(place: Path, nbytes: int, free: int) -> str:
    return (
        f"{nbytes} bytes of node memory are needed and {free} are free in {place}. Enlarge "
        f"{_mount(place)}, remove what others left there, or start fewer ranks on a node"
    )


def _mount(place: Path) -> str:
    return _SHARED_MEMORY if place.is_relative_to(_SHARED_MEMORY) else str(place)


def open_file(path: Path, nbytes: int, locks: int) -> FileMemory:
    """Map the file; each rank opens it itself, since a lock belongs to an open file."""
    file = open_own_file(path, os.O_RDWR)
    try:
        return FileMemory(file, nbytes, locks)
    except BaseException:
        os.close(file)
        raise


def map_together(world: World, local: World, nbytes: int, locks: int) -> FileMemory:
    """Memory for the ranks of each node, made by the lowest of them; either all ranks get it or
    none.

    No rank waits for one that failed: each takes part in the same exchanges, with its memory or
    with its error. The file is unlinked before any rank goes on, so it disappears with the last
    rank that maps it, however the ranks end.
    """
    path, problem = None, None
    if local.rank == 0:
        path, problem = _try(world, lambda: make_file(find_place(), nbytes))
    path, problem = local.bcast_value((path, problem))
    memory = None
    if path is not None:
        memory, problem = _try(world, lambda: open_file(path, nbytes, locks))
    if len(set(local.allgather_values((nbytes, locks)))) > 1:
        problem = problem or f"the ranks of {world.node} ask for node memory of different sizes"
    problems = [text for text in world.allgather_values(problem) if text]
    if local.rank == 0 and path is not None:
        path.unlink(missing_ok=True)
    if not problems and memory is not None:
        return memory
    if memory is not None:
        memory.close()
    raise WorldError(problems[0])


def _try(world: World, action: Callable[[], T]) -> tuple[T | None, str | None]:
    """The action's result, or what went wrong."""
    try:
        return action(), None
    except WorldError as error:
        return None, f"on {world.node}: {error}"
    except (OSError, ValueError, OverflowError) as error:
        return None, f"on {world.node}: node memory is not available: {error}"
