"""What a process can be told about itself, and reading it from environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from paceline.errors import LaunchError


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


@dataclass(frozen=True)
class WorldSizeAdvice:
    """What to say of a world of another size: how many were meant, by whom, and what to do.

    `{n}` in both stands for the number of ranks that was meant.
    """

    meant: str
    advice: str


class Kind(Protocol):
    """A launcher or a scheduler: each file of this package but this one is one."""

    @property
    def REMEDIES(self) -> Mapping[str, WorldSizeAdvice]:
        """A remedy for each `Environment.kind` that `read` gives."""

    def read(self, env: Mapping[str, str]) -> Environment | None:
        """What it says about this process, `None` where it has not set its variables."""


OTHER_MPI = (
    "The mpirun that started this and the MPI library of mpi4py are different MPIs. "
    "See `python -c 'from mpi4py import MPI; print(MPI.Get_library_version())'` and start with "
    "the mpirun beside that python, or with `paceline run -n {n}`."
)

BATCH_SCRIPT = (
    "This is the batch script itself: start the ranks with `paceline run -n {n}` or `mpirun`, "
    "or say `-n 1` (in a script of your own: PACELINE_RANKS=1) if one rank is meant."
)


def read_rank(
    env: Mapping[str, str], kind: str, rank: str, size: str, local_rank: str, local_size: str
) -> Environment | None:
    """A rank of a launcher that tells these four by variables of these names."""
    ranks = read_count(env, size)
    if ranks is None:
        return None
    return Environment(
        kind,
        read_index(env, rank),
        ranks,
        read_index(env, local_rank),
        read_count(env, local_size),
        launched=True,
    )


def describe_script(kind: str, size: int) -> Environment:
    """A process inside an allocation for so many ranks, and none of them."""
    return Environment(kind, None, size, None, None, launched=False)


def read_index(env: Mapping[str, str], name: str) -> int | None:
    """A variable that counts from 0; `None` if it is not set."""
    return _read_number(env, name, least=0)


def read_count(env: Mapping[str, str], name: str) -> int | None:
    """A variable that counts from 1; `None` if it is not set."""
    return _read_number(env, name, least=1)


def refuse_value(env: Mapping[str, str], name: str, expected: str) -> LaunchError:
    """The error for a variable that does not hold what it should."""
    return LaunchError(
        f"the environment variable {name} is {env[name]!r}, expected {expected}. Unset it."
    )


def _read_number(env: Mapping[str, str], name: str, least: int) -> int | None:
    text = env.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise refuse_value(env, name, f"a whole number of {least} or more")
    return int(text)


JOB_DIR = "PACELINE_JOB_DIR"
"""The variable that names the folder which our launcher made for this job, and removes."""
