"""PBS (Torque, PBS Pro, OpenPBS): the scripts and shells of jobs."""

from collections.abc import Mapping
from pathlib import Path

from paceline.cluster.identity import (
    BATCH_SCRIPT,
    Environment,
    WorldSizeAdvice,
    describe_script,
    read_count,
)

REMEDIES: Mapping[str, WorldSizeAdvice] = {
    "pbs-batch": WorldSizeAdvice("PBS granted {n} ranks", BATCH_SCRIPT)
}


def read(env: Mapping[str, str]) -> Environment | None:
    if "PBS_JOBID" not in env:
        return None
    # PBS_NP is Torque's. PBS Pro has a line for each rank in a file. NCPUS is last: it tells the
    # processors of the first host only, and they may be meant for threads.
    size = read_count(env, "PBS_NP") or _count_lines(env) or read_count(env, "NCPUS") or 1
    return describe_script("pbs-batch", size)


def _count_lines(env: Mapping[str, str]) -> int:
    """The ranks in PBS_NODEFILE; 0 where there is none, as on all hosts but the first."""
    try:
        return len(Path(env["PBS_NODEFILE"]).read_text().split())
    except (KeyError, OSError):
        return 0
