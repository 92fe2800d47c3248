"""Memory of this node: what it has, what cgroups allow, and /dev/shm."""

import os
from pathlib import Path

from paceline.cluster.cgroups import memory_limits

_ROOT = Path("/")


def read_memory(root: Path = _ROOT) -> tuple[int, int]:
    """Bytes of memory in total, and available to new programs; 0 where unknown."""
    sizes = {}
    for line in _read_meminfo(root):
        name, _, rest = line.partition(":")
        if rest.split()[:1] and rest.split()[0].isdigit():
            sizes[name] = int(rest.split()[0]) * 1024
    return sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)


def read_memory_limit(root: Path = _ROOT) -> int | None:
    """The lowest limit among this process's cgroups and their parents."""
    return min(memory_limits(root), default=None)


def read_shared_memory(folder: str = "/dev/shm") -> tuple[int, int]:
    """Bytes of shared memory in total, and available to us; 0 where there is none."""
    try:
        place = os.statvfs(folder)
    except OSError:
        return 0, 0
    return place.f_blocks * place.f_frsize, place.f_bavail * place.f_frsize


def _read_meminfo(root: Path) -> list[str]:
    try:
        return (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return []
