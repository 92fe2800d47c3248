"""Who am I: which launcher started this process, and how many ranks it meant to start."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from paceline.errors import LaunchError

JOB_FOLDER = "PACELINE_JOB_FOLDER"
"""The variable that names the folder which our launcher made for this job, and removes."""

# Slurm's reserved step ids: the shell of `salloc` and the batch script are steps of one task each.
_SLURM_LONE_STEPS = ("4294967290", "4294967291")


@dataclass(frozen=True)
class Environment:
    """What the environment variables say about this process.

    `launched`: a launcher started this process as a rank, so it must join that world and start no
    other launcher. `size` is the number of ranks that is expected, `None` stands for "not told".
    """

    kind: str
    rank: int | None
    size: int
    local_rank: int | None
    local_size: int | None
    launched: bool


def detect(env: Mapping[str, str] = os.environ) -> Environment:
    """Tell which launcher started this process; PACELINE_RANKS, if set, is the size expected.

    >>> detect({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}).rank
    1
    """
    found = next(e for e in (read(env) for read in _READERS) if e is not None)
    # Our own launcher may have started us by an mpirun whose variables we do not know.
    launched = found.launched or env.get("PACELINE_LAUNCHER") == "1"
    asked = _number(env, "PACELINE_RANKS")
    return replace(found, size=found.size if asked is None else asked, launched=launched)


def check_world(environment: Environment, size: int) -> None:
    """Refuse a world whose size is not the one that was started, and name the remedy."""
    expected = environment.size
    if expected in (1, size):
        return
    starter, remedy = _REMEDIES[environment.kind]
    alone = " (each task would train alone)" if size == 1 else ""
    raise LaunchError(
        f"{starter} {expected} tasks, but MPI formed a world of {size}{alone}. "
        + remedy.format(n=expected)
    )


def _open_mpi(env: Mapping[str, str]) -> Environment | None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    return _rank_of(env, "openmpi", *(f"OMPI_COMM_WORLD_{name}" for name in names))


def _hydra(env: Mapping[str, str]) -> Environment | None:
    return _rank_of(env, "hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")


def _rank_of(env: Mapping[str, str], kind: str, *names: str) -> Environment | None:
    """A rank of a launcher that tells rank, size, local rank and local size by these names."""
    rank, size, local_rank, local_size = (_number(env, name) for name in names)
    if size is None:
        return None
    return Environment(kind, rank, size, local_rank, local_size, launched=True)


def _slurm_step(env: Mapping[str, str]) -> Environment | None:
    size = _number(env, "SLURM_STEP_NUM_TASKS") or _number(env, "SLURM_NTASKS")
    step = env.get("SLURM_STEP_ID")
    if size is None or step is None or step in _SLURM_LONE_STEPS:
        return None
    return Environment(
        kind="slurm-step",
        rank=_number(env, "SLURM_PROCID"),
        size=size,
        local_rank=_number(env, "SLURM_LOCALID"),
        local_size=None,
        # One task is `srun --pty bash`: a shell in which people do start their own ranks.
        launched=size > 1,
    )


def _slurm_batch(env: Mapping[str, str]) -> Environment | None:
    size = _number(env, "SLURM_NTASKS")
    if size is None:
        return None
    return Environment("slurm-batch", None, size, None, None, launched=False)


def _alone(env: Mapping[str, str]) -> Environment:
    return Environment("none", None, 1, None, None, launched=False)


# Order matters: under Slurm, mpirun starts its ranks with the Slurm variables set as well.
_READERS: tuple[Callable[[Mapping[str, str]], Environment | None], ...] = (
    _open_mpi,
    _hydra,
    _slurm_step,
    _slurm_batch,
    _alone,
)

_OTHER_MPI = (
    "The mpirun that started this and the MPI library of mpi4py are different MPIs. "
    "See `python -c 'from mpi4py import MPI; print(MPI.Get_library_version())'` and start with "
    "the mpirun beside that python, or with `paceline run -n {n}`."
)

_REMEDIES = {
    "openmpi": ("Open MPI's mpirun started", _OTHER_MPI),
    "hydra": ("mpiexec (Hydra) started", _OTHER_MPI),
    "slurm-step": (
        "srun started",
        "Use `srun --mpi=pmix` (or pmi2 with MPICH), or start with "
        "`mpirun`/`paceline train -n {n}`.",
    ),
    "slurm-batch": (
        "Slurm allocated",
        "This is the batch script itself: start the ranks with `paceline run -n {n}`, `mpirun` or "
        "`srun`, or say `-n 1` if one rank is meant.",
    ),
    "none": (
        "PACELINE_RANKS asks for",
        "Start the ranks with `paceline run -n {n}`, or unset PACELINE_RANKS.",
    ),
}


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise LaunchError(
            f"the environment variable {name} is {text!r}, expected a whole number. Unset it."
        ) from None
