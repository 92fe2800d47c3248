"""Grid Engine: the scripts and shells of jobs in a parallel environment.

A task that `qrsh -inherit` started on another host may have these variables, too. It is no rank by
itself: it is how a launcher reaches that host, and the ranks have the launcher's variables.
"""

from collections.abc import Mapping

from paceline.cluster.identity import (
    BATCH_SCRIPT,
    Environment,
    WorldSizeAdvice,
    describe_script,
    read_count,
)

REMEDIES: Mapping[str, WorldSizeAdvice] = {
    "sge-batch": WorldSizeAdvice("Grid Engine granted {n} slots", BATCH_SCRIPT)
}


def read(env: Mapping[str, str]) -> Environment | None:
    # Others use JOB_ID and NSLOTS, too; PE_HOSTFILE is Grid Engine's alone.
    if "PE_HOSTFILE" not in env or "JOB_ID" not in env:
        return None
    slots = read_count(env, "NSLOTS")
    return None if slots is None else describe_script("sge-batch", slots)
