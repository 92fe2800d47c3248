"""Slurm: tasks that srun started, by whatever PMI, and the scripts and shells of allocations."""

from collections.abc import Mapping

from paceline.cluster.identity import (
    BATCH_SCRIPT,
    Environment,
    WorldSizeAdvice,
    describe_script,
    read_count,
    read_index,
    refuse_value,
)
from paceline.cluster.schedulers.allocation import expand_counts

REMEDIES: Mapping[str, WorldSizeAdvice] = {
    "slurm-step": WorldSizeAdvice(
        "srun started {n} tasks",
        "Use `srun --mpi=pmix` (or pmi2 with MPICH), or start with "
        "`mpirun`/`paceline train -n {n}`.",
    ),
    "slurm-batch": WorldSizeAdvice("Slurm allocated {n} tasks", BATCH_SCRIPT),
}

# Slurm's reserved step ids: the shell of `salloc` and the batch script are steps of one task each.
_LONE_STEPS = ("4294967290", "4294967291")
_TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"


def read(env: Mapping[str, str]) -> Environment | None:
    return _read_step(env) or _read_batch(env)


def _read_step(env: Mapping[str, str]) -> Environment | None:
    size = read_count(env, "SLURM_STEP_NUM_TASKS") or read_count(env, "SLURM_NTASKS")
    step = env.get("SLURM_STEP_ID")
    if size is None or step is None or step in _LONE_STEPS:
        return None
    return Environment(
        kind="slurm-step",
        rank=read_index(env, "SLURM_PROCID"),
        size=size,
        local_rank=read_index(env, "SLURM_LOCALID"),
        local_size=_read_local_size(env),
        # One task is `srun --pty bash`: a shell in which people do start their own ranks.
        launched=size > 1,
    )


def _read_batch(env: Mapping[str, str]) -> Environment | None:
    size = read_count(env, "SLURM_NTASKS")
    return None if size is None else describe_script("slurm-batch", size)


def _read_local_size(env: Mapping[str, str]) -> int | None:
    """The tasks of this step on this node."""
    node = read_index(env, "SLURM_NODEID")
    if node is None or _TASKS_PER_NODE not in env:
        return None
    try:
        counts = expand_counts(env[_TASKS_PER_NODE])
    except ValueError:
        raise refuse_value(env, _TASKS_PER_NODE, "numbers as in 2(x3),1") from None
    return counts[node] if node < len(counts) else None
