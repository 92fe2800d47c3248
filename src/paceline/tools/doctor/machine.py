"""The machine: cores, threads, memory, shared memory, GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.launch.preflight.node_info import NodeInfo
from paceline.tools.doctor.check import Check, amount

LEAST_MEMORY, ENOUGH_MEMORY = 500_000_000, 2_000_000_000
LEAST_SHM, ENOUGH_SHM = 64_000_000, 1_000_000_000
"""Bytes. Two ranks take some 10 MB of shared memory for messages; parameters that ranks share and
their gradients add several times the size of the model."""


def check_cores(facts: NodeInfo) -> Iterator[Check]:
    seen = f"{facts.cores} usable"
    if len(facts.affinity) < facts.cpus:
        listed = ",".join(map(str, facts.affinity[:16]))
        seen += f"; bound to {len(facts.affinity)} of {facts.cpus} processors ({listed})"
    if facts.quota is not None:
        seen += f"; the cgroup allows {facts.quota:g} processors' time"
    bound = len(facts.affinity) < facts.cpus and not facts.job
    if bound and facts.cores == 1:
        yield Check(
            "cores",
            "warn",
            seen,
            "If not intended: `taskset -pc 0-N $$` frees this shell, or start from another.",
        )
    else:
        yield Check("cores", "ok", seen)


def check_threads(facts: NodeInfo) -> Iterator[Check]:
    """More threads than cores slow each other down, and every exchange waits for them."""
    if facts.threads is None:
        yield Check("threads", "ok", "OMP_NUM_THREADS is not set: ranks share the cores")
        return
    first = facts.threads.split(",")[0].strip()
    if not first.isdecimal() or int(first) < 1:
        yield Check(
            "threads",
            "fail",
            f"OMP_NUM_THREADS is {facts.threads!r}, not a number",
            "Unset it, or set it to the threads of a rank.",
        )
    elif int(first) > facts.cores:
        yield Check(
            "threads",
            "fail",
            f"OMP_NUM_THREADS is {first}, but a rank may use {facts.cores} "
            f"{'core' if facts.cores == 1 else 'cores'}",
            f"Unset OMP_NUM_THREADS, or give --threads {facts.cores}; or free the cores: see "
            "`taskset -p $$`, and in a job ask for as many cores per task as threads.",
        )
    else:
        yield Check("threads", "ok", f"OMP_NUM_THREADS is {first}")


def check_memory(facts: NodeInfo) -> Iterator[Check]:
    if not facts.memory_bytes:
        yield Check("memory", "warn", "could not be read", "")
        return
    limit = facts.memory_limit_bytes
    usable = min(facts.memory_free_bytes, limit or facts.memory_free_bytes)
    seen = f"{amount(facts.memory_free_bytes)} free of {amount(facts.memory_bytes)}"
    seen += "" if limit is None else f", limited to {amount(limit)}"
    if usable < LEAST_MEMORY:
        yield Check(
            "memory",
            "fail",
            f"{seen}; a rank with torch needs {amount(LEAST_MEMORY)}",
            "End other programs, or ask the scheduler for more memory.",
        )
    elif usable < ENOUGH_MEMORY:
        yield Check(
            "memory",
            "warn",
            f"{seen}: enough for about two ranks",
            "Start few ranks, or ask the scheduler for more memory.",
        )
    else:
        yield Check("memory", "ok", seen)


def check_shared_memory(facts: NodeInfo) -> Iterator[Check]:
    name, remount = "shared memory", "`mount -o remount,size=50% /dev/shm` as root"
    container = "in a container give it more (`--shm-size=8g`)"
    if not facts.shm_bytes:
        yield Check(
            name,
            "warn",
            "no /dev/shm: ranks of a node will exchange messages",
            f"Mount a tmpfs at /dev/shm, or {container}.",
        )
        return
    seen = f"{amount(facts.shm_free_bytes)} free of {amount(facts.shm_bytes)} in /dev/shm"
    if facts.shm_free_bytes < LEAST_SHM:
        yield Check(
            name,
            "fail",
            f"{seen}, at least {amount(LEAST_SHM)} are needed",
            f"Remove what other jobs left in /dev/shm; {remount}; {container}.",
        )
    elif facts.shm_free_bytes < ENOUGH_SHM:
        yield Check(
            name, "warn", f"{seen}: only models of a few MB fit", f"{remount}; {container}."
        )
    else:
        yield Check(name, "ok", seen)


def check_gpus(facts: NodeInfo) -> Iterator[Check]:
    seen = f"{len(facts.gpus)}: {', '.join(facts.gpus)}" if facts.gpus else "none found"
    yield Check("GPUs", "ok", seen)


MACHINE_CHECKS = (check_cores, check_threads, check_memory, check_shared_memory, check_gpus)
