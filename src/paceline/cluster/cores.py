"""Cores that this process may use: within its affinity mask and its cgroups' quotas."""

import math
import os
from collections.abc import Iterable
from pathlib import Path

from paceline.cluster.cgroups import cpu_quotas

_ROOT = Path("/")


THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "NPROC")
"""Variables that limit the threads of libraries: OpenMP, MKL, TensorFlow, XLA (JAX)."""


def available_cores(root: Path = _ROOT, cpus: Iterable[int] | None = None) -> int:
    """Count the physical cores that this process may use, at least 1.

    Hyperthreads of one core count once; a container's CPU quota limits the count, rounded up.
    """
    allowed = affinity() if cpus is None else set(cpus)
    cores = len({_siblings(root, cpu) for cpu in allowed})
    quota = min((math.ceil(q) for q in cpu_quotas(root)), default=cores)
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
    """The limit for one rank: more threads only compete for cores, or cannot be started at all."""
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


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
