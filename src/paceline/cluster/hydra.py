"""Hydra: ranks that the mpiexec of MPICH, or of one of its relatives, started."""

from collections.abc import Mapping

from paceline.cluster.identity import OTHER_MPI, Environment, WorldSizeAdvice, read_rank

REMEDIES: Mapping[str, WorldSizeAdvice] = {
    "hydra": WorldSizeAdvice("mpiexec (Hydra) started {n} tasks", OTHER_MPI)
}


def read(env: Mapping[str, str]) -> Environment | None:
    # `srun --mpi=pmi2` sets PMI_RANK and PMI_SIZE as well; only Hydra tells a local rank by this
    # name. Inside Slurm, Hydra starts its proxies by srun, so Slurm's variables prove nothing.
    if "MPI_LOCALRANKID" not in env and "SLURM_STEP_ID" in env:
        return None
    return read_rank(env, "hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
