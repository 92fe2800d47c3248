"""The interface of a scheduler: each is one module with these names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from paceline.cluster.hosts import Host
from paceline.cluster.identity import Environment, WorldSizeAdvice
from paceline.cluster.schedulers.request import JobRequest
from paceline.errors import LaunchError


@dataclass(frozen=True)
class Allocation:
    """Hosts that a scheduler has granted.

    `here` is this machine's name among them, if it is one of them; `threads` are per rank, if the
    scheduler says how many.
    """

    scheduler: str
    hosts: tuple[Host, ...]
    threads: int | None = None
    here: str | None = None

    @property
    def slots(self) -> int:
        return sum(host.slots or 1 for host in self.hosts)


@dataclass(frozen=True)
class CommandReply:
    """The output of a scheduler's command; `code` is None if it could not be run."""

    code: int | None
    said: str = ""
    late: bool = False
    """It was started and did not answer in time: what it was asked to do may be done."""


Ask = Callable[[Sequence[str]], CommandReply]
"""Run a command of the scheduler."""


Kind = Literal["waiting", "running", "ended", "stuck", "unknown"]
"""`stuck`: it waits, and will for ever unless a person helps."""


@dataclass(frozen=True)
class State:
    """Where a job is. `code` is its exit code if the scheduler knows it; `detail` a few words."""

    kind: Kind
    code: int | None = None
    detail: str = ""

    @property
    def is_live(self) -> bool:
        return self.kind in ("waiting", "running")


@dataclass(frozen=True)
class Hint:
    """A command for a person to type, with {job} in place of the job's id, and its purpose."""

    purpose: str
    command: str


@dataclass(frozen=True)
class Remedy:
    """What to do if the scheduler says `mark`; `listing` is a command that names what is valid."""

    mark: str
    advice: str
    listing: tuple[str, ...] = ()


class Scheduler(Protocol):
    TITLE: str
    """Its name, as people write it."""
    COMMANDS: tuple[str, ...]
    """Its commands that doctor looks for on PATH."""
    MARKS: tuple[str, ...]
    """Those of them that together show that this scheduler is here, and no other."""
    RANKS_OPTION: str
    """The option of its submit command that asks for ranks."""
    WORLD_SIZE_ADVICE: Mapping[str, WorldSizeAdvice]
    """Advice for each `Environment.kind` that `detect` returns."""
    SUBMIT: tuple[str, ...]
    """The command that submits the script, run in the script's directory."""
    SUBMIT_BY_HAND: str
    """The same as a person types it."""
    SUBMIT_NOTES: str
    """What the help of `paceline submit` says about this scheduler alone."""
    HINTS: tuple[Hint, ...]
    """How to watch and stop a job."""
    REMEDIES: tuple[Remedy, ...]
    """What to do about each refusal."""

    def detect(self, env: Mapping[str, str]) -> Environment | None:
        """This process as the scheduler describes it; None where it has set no variables."""
        ...

    def read_job_id(self, env: Mapping[str, str]) -> str:
        """The id of the job that this process is in; empty outside of one."""
        ...

    def read_allocation(self, env: Mapping[str, str]) -> Allocation | None:
        """What it has granted to the job that this process is in."""
        ...

    def choose_remote_shell(self, is_found: Callable[[str], bool], ask: Ask) -> str | None:
        """The command that starts a program on another host of the job; None: the launcher knows.

        `is_found` says whether a program is on PATH.
        """
        ...

    def fill_in(self, request: JobRequest, ask: Ask) -> JobRequest:
        """Fill in what only the site knows."""
        ...

    def check(self, request: JobRequest) -> list[str]:
        """Everything in the request that it would refuse or misread."""
        ...

    def render(self, request: JobRequest) -> str:
        """The script. Pure: the same request gives the same text."""
        ...

    def read_id(self, said: str) -> str | None:
        """The id of the job, in the output of SUBMIT."""
        ...

    def read_state(self, job: str, ask: Ask) -> State:
        """Where the job is; of an array, its task that is least advanced."""
        ...


def advise(scheduler: Scheduler, said: str, ask: Ask) -> str:
    """What to do about a refusal, with the valid names where the scheduler lists them."""
    for remedy in scheduler.REMEDIES:
        if remedy.mark.lower() in said.lower():
            return remedy.advice + "".join(_valid(remedy.listing, ask))
    return "Its message above says why; --dry-run shows the script"


def _valid(listing: Sequence[str], ask: Ask) -> Iterator[str]:
    if listing:
        answer = ask(listing)
        names = answer.said.split("\n") if answer.code == 0 else []
        names = list(dict.fromkeys(name.strip() for name in names if name.strip()))
        if names:
            yield f" (there are: {', '.join(names)})"


def read_host_list(env: Mapping[str, str], variable: str) -> str:
    """The file that a scheduler's variable names, as text."""
    try:
        return Path(env[variable]).read_text()
    except OSError as error:
        raise LaunchError(
            f"the scheduler's {variable} names {env[variable]}, which cannot be read: {error}. "
            f"Outside of a job unset {variable}"
        ) from None


def add_up(counts: Sequence[tuple[str, int]]) -> tuple[Host, ...]:
    """One host for each name, in the order of their first mention.

    >>> add_up([("b", 1), ("a", 2), ("b", 1)])
    (Host(name='b', slots=2), Host(name='a', slots=2))
    """
    names = dict.fromkeys(name for name, _ in counts)
    return tuple(Host(name, sum(c for other, c in counts if other == name)) for name in names)
