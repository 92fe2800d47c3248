"""Who am I: which launcher started this process, and how many ranks it meant to start.

One file for each kind of launcher and scheduler, as `identity.Kind` describes them.
"""

import os
from collections.abc import Mapping
from dataclasses import replace

from paceline.cluster import hydra, intel, none, openmpi, torchrun
from paceline.cluster.identity import Environment, Kind, read_count
from paceline.cluster.schedulers import lsf_launch_environment_lsf as lsf
from paceline.cluster.schedulers import pbs_launch_environment_pbs as pbs
from paceline.cluster.schedulers import sge_launch_environment_sge as sge
from paceline.cluster.schedulers import slurm_launch_environment_slurm as slurm
from paceline.errors import LaunchError

__all__ = ["KINDS", "Environment", "check_world", "detect"]


# The first that knows this process wins, so what lies further inside comes first. torchrun is
# itself started by mpirun or srun. mpirun's ranks inherit the variables of the scheduler. Intel's
# ranks have all of Hydra's variables, and Slurm can be told to set those of PBS.
KINDS: tuple[Kind, ...] = (torchrun, openmpi, intel, hydra, slurm, lsf, sge, pbs, none)

_REMEDIES = {name: remedy for kind in KINDS for name, remedy in kind.REMEDIES.items()}


def detect(env: Mapping[str, str] = os.environ) -> Environment:
    """Tell which launcher started this process; PACELINE_RANKS, if set, is the size expected.

    >>> detect({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}).rank
    1
    """
    found = next(e for e in (kind.read(env) for kind in KINDS) if e is not None)
    # Our own launcher may have started us by an mpirun whose variables we do not know.
    launched = found.launched or env.get("PACELINE_LAUNCHER") == "1"
    asked = read_count(env, "PACELINE_RANKS")
    return replace(found, size=found.size if asked is None else asked, launched=launched)


def check_world(environment: Environment, size: int) -> None:
    """Refuse a world whose size is not the one that was started, and name the remedy."""
    expected = environment.size
    if expected in (1, size):
        return
    remedy = _REMEDIES[environment.kind]
    alone = " (each task would train alone)" if size == 1 else ""
    raise LaunchError(
        f"{remedy.meant.format(n=expected)}, but MPI formed a world of {size}{alone}. "
        + remedy.advice.format(n=expected)
    )
