"""LSF: tasks that jsrun started, and the scripts and shells of jobs.

A task that `blaunch` started is no rank by itself: it is how mpirun reaches other hosts.
"""

from collections.abc import Mapping

from paceline.cluster.identity import (
    BATCH_SCRIPT,
    Environment,
    WorldSizeAdvice,
    describe_script,
    read_count,
    read_rank,
    refuse_value,
)

REMEDIES: Mapping[str, WorldSizeAdvice] = {
    "lsf-step": WorldSizeAdvice(
        "jsrun started {n} tasks",
        "The MPI library of mpi4py is not the one that jsrun serves (IBM Spectrum MPI). Build "
        "mpi4py with that one, or start with `paceline run -n {n}`.",
    ),
    "lsf-batch": WorldSizeAdvice("LSF granted {n} slots", BATCH_SCRIPT),
}

_SLOTS_PER_HOST = "LSB_MCPU_HOSTS"


def read(env: Mapping[str, str]) -> Environment | None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    task = read_rank(env, "lsf-step", *(f"JSM_NAMESPACE_{name}" for name in names))
    if task is not None or "LSB_JOBID" not in env:
        return task
    slots = read_count(env, "LSB_DJOB_NUMPROC") or _add_up_slots(env)
    return describe_script("lsf-batch", slots)


def _add_up_slots(env: Mapping[str, str]) -> int:
    """The slots of `host 4 other 4`; 1 where nothing is told."""
    counts = env.get(_SLOTS_PER_HOST, "").split()[1::2]
    if not all(count.isdecimal() for count in counts):
        raise refuse_value(env, _SLOTS_PER_HOST, "hosts and their slots as in 'n1 4 n2 4'")
    return sum(map(int, counts)) or 1
