"""Who am I: which launcher started this process, and how many ranks it meant to start."""

import os
from collections.abc import Mapping
from dataclasses import replace

from paceline.cluster.identity import Environment, WorldSizeAdvice, describe_script, read_count
from paceline.cluster.launchers import LAUNCHERS
from paceline.cluster.schedulers import SCHEDULERS
from paceline.errors import LaunchError

__all__ = ["ADVICE", "Environment", "check_world", "detect"]


ADVICE: dict[str, WorldSizeAdvice] = {launcher.kind: launcher.advice for launcher in LAUNCHERS}
"""What to do about a world of the wrong size, for each `Environment.kind`."""
for _scheduler in SCHEDULERS.values():
    ADVICE |= _scheduler.WORLD_SIZE_ADVICE
ADVICE["none"] = WorldSizeAdvice(
    "PACELINE_RANKS asks for {n} tasks",
    "Start the ranks with `paceline run -n {n}`, or unset PACELINE_RANKS.",
)

# mpirun's ranks inherit the variables of the scheduler, so launchers come first.
_READERS = (
    *(launcher.detect for launcher in LAUNCHERS),
    *(scheduler.detect for scheduler in SCHEDULERS.values()),
)


def detect(env: Mapping[str, str] = os.environ) -> Environment:
    """Find out which launcher started this process; PACELINE_RANKS, if set, is the size expected.

    >>> detect({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}).rank
    1
    """
    found = next(filter(None, (read(env) for read in _READERS)), describe_script("none", 1))
    # Our own launcher may have started us by an mpirun whose variables we do not know.
    launched = found.launched or env.get("PACELINE_LAUNCHER") == "1"
    asked = read_count(env, "PACELINE_RANKS")
    return replace(found, size=found.size if asked is None else asked, launched=launched)


def check_world(environment: Environment, size: int) -> None:
    """Refuse a world of another size than was started, and say what to do."""
    expected = environment.size
    if expected in (1, size):
        return
    remedy = ADVICE[environment.kind]
    alone = " (each task would train alone)" if size == 1 else ""
    raise LaunchError(
        f"{remedy.meant.format(n=expected)}, but MPI formed a world of {size}{alone}. "
        + remedy.advice.format(n=expected)
    )
