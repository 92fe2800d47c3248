"""What environment variables say about a process, and how they are read."""

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import LaunchError


@dataclass(frozen=True)
class Environment:
    """What the environment variables say about this process.

    `launched`: a launcher started this process as a rank, so it must join that world and start no
    other launcher. `size` is the number of ranks expected; None stands for "not known".
    """

    kind: str
    rank: int | None
    size: int
    local_rank: int | None
    local_size: int | None
    launched: bool


@dataclass(frozen=True)
class WorldSizeAdvice:
    """What to say about a world of the wrong size: how many ranks were meant, by whom, the remedy.

    `{n}` in both stands for the number of ranks that were meant.
    """

    meant: str
    advice: str


JOB_DIR = "PACELINE_JOB_DIR"
"""The variable that names the folder which our launcher makes for a job, and removes."""

NODE_STATE = "PACELINE_NODE_STATE"
"""The variable that names a folder in node memory, for checkpoints from which our launcher starts
the ranks again if one is lost."""

BATCH_SCRIPT = (
    "This is the batch script itself: start the ranks with `paceline run -n {n}` or `mpirun`, "
    "or say `-n 1` (in a script of your own: PACELINE_RANKS=1) if one rank is meant."
)


def read_rank(
    env: Mapping[str, str], kind: str, rank: str, size: str, local_rank: str, local_size: str
) -> Environment | None:
    """A rank of a launcher that gives these four in variables of these names."""
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
    """A process inside an allocation for `size` ranks that is none of them."""
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
