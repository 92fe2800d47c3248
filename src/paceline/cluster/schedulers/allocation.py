"""What a scheduler has granted this job: its hosts, how many ranks each is for, their threads."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.hosts import Host
from paceline.errors import LaunchError


@dataclass(frozen=True)
class Allocation:
    """Hosts that a scheduler has granted.

    `here` is this machine's name among them, if it is one of them. `threads` per rank, if told.
    """

    scheduler: str
    hosts: tuple[Host, ...]
    threads: int | None = None
    here: str | None = None

    @property
    def slots(self) -> int:
        return sum(host.slots or 1 for host in self.hosts)


def read_allocation(env: Mapping[str, str] = os.environ) -> Allocation | None:
    """The allocation that this process is in; `None` outside of any."""
    return next((found for read in _READERS if (found := read(env)) is not None), None)


def expand_nodes(text: str) -> list[str]:
    """The hosts of Slurm's short form.

    >>> expand_nodes("n[08-10,12],gpu1")
    ['n08', 'n09', 'n10', 'n12', 'gpu1']
    """
    return [name for part in _split(text) for name in _expand(part)]


def expand_counts(text: str) -> list[int]:
    """The numbers of Slurm's short form.

    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in text.split(",")]
    if None in parts:
        raise ValueError(f"{text!r} is not of the form 2(x3),1")
    return [int(part[1]) for part in parts if part for _ in range(int(part[2] or 1))]


def _slurm(env: Mapping[str, str]) -> Allocation | None:
    nodes, job = env.get("SLURM_JOB_NODELIST"), env.get("SLURM_JOB_ID")
    if not nodes or not job:
        return None
    names, told = expand_nodes(nodes), env.get("SLURM_TASKS_PER_NODE")
    try:
        counts = [1] * len(names) if told is None else expand_counts(told)
    except ValueError as error:
        raise LaunchError(f"Slurm's SLURM_TASKS_PER_NODE: {error}. Unset it") from None
    threads = env.get("SLURM_CPUS_PER_TASK", "")
    if len(counts) != len(names):
        raise LaunchError(
            f"Slurm's SLURM_JOB_NODELIST={nodes} names {len(names)} hosts, but "
            f"SLURM_TASKS_PER_NODE={told} is for {len(counts)}. Start "
            "from the job's own shell or script"
        )
    return Allocation(
        "slurm",
        tuple(map(Host, names, counts)),
        int(threads) if threads.isdecimal() else None,
        env.get("SLURMD_NODENAME"),
    )


def _grid_engine(env: Mapping[str, str]) -> Allocation | None:
    if "PE_HOSTFILE" not in env:
        return None
    lines = [line.split() for line in _read(env, "PE_HOSTFILE").splitlines() if line.strip()]
    hosts = [(line[0], int(line[1])) for line in lines if len(line) > 1 and line[1].isdecimal()]
    return Allocation("sge", _add_up(hosts))


def _pbs(env: Mapping[str, str]) -> Allocation | None:
    if "PBS_NODEFILE" not in env:
        return None
    names = _read(env, "PBS_NODEFILE").split()
    threads = env.get("OMP_NUM_THREADS", "")  # PBS sets it from ompthreads=
    return Allocation(
        "pbs", _add_up([(name, 1) for name in names]), int(threads) if threads.isdecimal() else None
    )


def _lsf(env: Mapping[str, str]) -> Allocation | None:
    words = env.get("LSB_MCPU_HOSTS", "").split()
    if not words:
        return None
    pairs = zip(words[::2], words[1::2], strict=False)
    return Allocation("lsf", _add_up([(name, int(count)) for name, count in pairs]))


_READERS: tuple[Callable[[Mapping[str, str]], Allocation | None], ...] = (
    _slurm,
    _grid_engine,
    _pbs,
    _lsf,
)


def _read(env: Mapping[str, str], variable: str) -> str:
    try:
        return Path(env[variable]).read_text()
    except OSError as error:
        raise LaunchError(
            f"the scheduler's {variable} names {env[variable]}, which cannot be read: {error}. "
            f"Outside of a job unset {variable}"
        ) from None


def _add_up(counts: list[tuple[str, int]]) -> tuple[Host, ...]:
    """One host for each name, in the order of their first mention."""
    names = dict.fromkeys(name for name, _ in counts)
    return tuple(Host(name, sum(c for other, c in counts if other == name)) for name in names)


def _split(text: str) -> Iterator[str]:
    """Split at the commas that are not inside brackets."""
    depth, part = 0, ""
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    if part:
        yield part


def _expand(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, after = rest.partition("]")
    for piece in inside.split(","):
        first, _, last = piece.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield from _expand(f"{before}{number:0{len(first)}d}{after}")
