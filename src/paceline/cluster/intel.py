"""Intel MPI: ranks that its own Hydra started."""

from collections.abc import Mapping
from dataclasses import replace

from paceline.cluster import hydra
from paceline.cluster.identity import OTHER_MPI, Environment, WorldSizeAdvice

REMEDIES: Mapping[str, WorldSizeAdvice] = {
    "intel": WorldSizeAdvice("Intel MPI's mpirun started {n} tasks", OTHER_MPI)
}

# I_MPI_ROOT and settings such as I_MPI_FABRICS come with a module that is loaded, whoever starts
# the ranks; these concern Intel's mpirun. A wrong guess changes the words of an error, no more.
_MARKS = ("I_MPI_HYDRA_", "I_MPI_MPIRUN")


def read(env: Mapping[str, str]) -> Environment | None:
    found = hydra.read(env)
    if found is None or not any(name.startswith(_MARKS) for name in env):
        return None
    return replace(found, kind="intel")
