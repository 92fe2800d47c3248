"""Open MPI: ranks that its mpirun started."""

from collections.abc import Mapping

from paceline.cluster.identity import OTHER_MPI, Environment, WorldSizeAdvice, read_rank

REMEDIES: Mapping[str, WorldSizeAdvice] = {
    "openmpi": WorldSizeAdvice("Open MPI's mpirun started {n} tasks", OTHER_MPI)
}


def read(env: Mapping[str, str]) -> Environment | None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    return read_rank(env, "openmpi", *(f"OMPI_COMM_WORLD_{name}" for name in names))
