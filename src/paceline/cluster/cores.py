"""What this process may use: physical cores within its affinity mask and its cgroup's quota."""

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_ROOT = Path("/")


THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "NPROC")
"""What tells libraries how many threads they may use: OpenMP, MKL, TensorFlow, XLA (JAX)."""


def available_cores(root: Path = _ROOT, cpus: Iterable[int] | None = None) -> int:
    """Count the physical cores that this process may use, at least 1.

    Hyperthreads of one core count once; a container's CPU quota limits the count, rounded up.
    """
    allowed = affinity() if cpus is None else set(cpus)
    cores = len({_siblings(root, cpu) for cpu in allowed})
    quota = min((math.ceil(q) for q in quotas(root)), default=cores)
    return max(1, min(cores, quota))


def numa_nodes(root: Path = _ROOT, cpus: Iterable[int] | None = None) -> int:
    """Count the NUMA nodes that hold a CPU this process may use, at least 1."""
    allowed = affinity() if cpus is None else set(cpus)
    lists = root.glob("sys/devices/system/node/node[0-9]*/cpulist")
    return max(1, sum(1 for path in lists if allowed & _cpu_list(path.read_text())))


def threads_per_rank(ranks_here: int, cores: int) -> int:
    """Share the cores of a node among its ranks, at least one thread each.

    >>> threads_per_rank(3, 8)
    2
    """
    return max(1, cores // ranks_here)


def most_threads() -> int:
    """Of one rank: beyond it threads only fight for the cores, or cannot be started at all."""
    return max(1024, 4 * (os.cpu_count() or 1))


def affinity() -> set[int]:
    """The CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    # thread_siblings_list is the older name of core_cpus_list (Linux 5.3).
    for name in ("core_cpus_list", "thread_siblings_list"):
        text = _read(topology / name)
        if text:
            return frozenset(_cpu_list(text))
    return frozenset({cpu})


def _cpu_list(text: str) -> set[int]:
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas on the way from this process's cgroups up to their roots."""
    mount = root / "sys/fs/cgroup"
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            tops, quota = (mount, mount / "unified"), _quota_v2
        elif "cpu" in controllers.split(","):
            tops, quota = (mount / controllers, mount / "cpu"), _quota_v1
        else:
            continue
        for top in tops:
            yield from (q for group in _upwards(top, path) if (q := quota(group)) is not None)


def _upwards(top: Path, path: str) -> Iterator[Path]:
    # In a container the path may be the host's and absent here; the top still counts.
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield top.joinpath(*parts[:depth])


def _quota_v2(group: Path) -> float | None:
    quota, _, period = (_read(group / "cpu.max") or "max").partition(" ")
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(group: Path) -> float | None:
    quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
