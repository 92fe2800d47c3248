"""Launchers that start ranks: how a process sees that one of them started it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from paceline.cluster.identity import Environment, WorldSizeAdvice, read_count, read_rank


@dataclass(frozen=True)
class Launcher:
    """`detect` describes a process that this launcher started, and returns None for any other."""

    kind: str
    advice: WorldSizeAdvice
    detect: Callable[[Mapping[str, str]], Environment | None]


_OTHER_MPI = (
    "The mpirun that started this and the MPI library of mpi4py are different MPIs. "
    "See `python -c 'from mpi4py import MPI; print(MPI.Get_library_version())'` and start with "
    "the mpirun beside that python, or with `paceline run -n {n}`."
)

# I_MPI_ROOT and settings such as I_MPI_FABRICS come with a module that is loaded, whoever starts
# the ranks; these concern Intel's mpirun. A wrong guess changes the words of an error, no more.
_INTEL_MARKS = ("I_MPI_HYDRA_", "I_MPI_MPIRUN")


def _detect_torchrun(env: Mapping[str, str]) -> Environment | None:
    # RANK and WORLD_SIZE alone are set by many scripts, also for ranks of mpirun.
    if "TORCHELASTIC_RUN_ID" not in env:
        return None
    # The only process of torchrun is like any other: it may be a rank, and may start ranks.
    if read_count(env, "WORLD_SIZE") == 1:
        return None
    return read_rank(env, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def _detect_open_mpi(env: Mapping[str, str]) -> Environment | None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    return read_rank(env, "openmpi", *(f"OMPI_COMM_WORLD_{name}" for name in names))


def _detect_hydra(env: Mapping[str, str]) -> Environment | None:
    # `srun --mpi=pmi2` sets PMI_RANK and PMI_SIZE as well; only Hydra gives a local rank by this
    # name. Inside Slurm, Hydra starts its proxies by srun, so Slurm's variables prove nothing.
    if "MPI_LOCALRANKID" not in env and "SLURM_STEP_ID" in env:
        return None
    return read_rank(env, "hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")


def _detect_intel(env: Mapping[str, str]) -> Environment | None:
    found = _detect_hydra(env)
    if found is None or not any(name.startswith(_INTEL_MARKS) for name in env):
        return None
    return replace(found, kind="intel")


# torchrun may itself be started by mpirun. Intel's ranks have all of Hydra's variables.
LAUNCHERS = (
    Launcher(
        "torchrun",
        WorldSizeAdvice(
            "torchrun started {n} processes",
            "torchrun does not start MPI. Start with `paceline run -n {n} script.py` "
            "instead of torchrun.",
        ),
        _detect_torchrun,
    ),
    Launcher(
        "openmpi",
        WorldSizeAdvice("Open MPI's mpirun started {n} tasks", _OTHER_MPI),
        _detect_open_mpi,
    ),
    Launcher(
        "intel",
        WorldSizeAdvice("Intel MPI's mpirun started {n} tasks", _OTHER_MPI),
        _detect_intel,
    ),
    Launcher(
        "hydra",  # the mpiexec of MPICH and its relatives
        WorldSizeAdvice("mpiexec (Hydra) started {n} tasks", _OTHER_MPI),
        _detect_hydra,
    ),
)
"""The first that knows a process wins, so the innermost comes first."""
