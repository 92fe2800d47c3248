"""What a scheduler must be able to do; each has a file with these names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from paceline.cluster.schedulers.request import JobRequest


@dataclass(frozen=True)
class CommandReply:
    """What a command of the scheduler said; `code` is None if it could not be asked."""

    code: int | None
    said: str = ""
    late: bool = False
    """It was asked and did not answer in time: what it was asked for may be done."""


Ask = Callable[[Sequence[str]], CommandReply]
"""Run a command of the scheduler."""


Kind = Literal["waiting", "running", "ended", "stuck", "unknown"]
"""`stuck`: it waits, and without somebody's help it will for ever."""


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
    """A command for a person, with {job} in the place of the number, and what it is for."""

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
    HAND_IN: tuple[str, ...]
    """The command that takes the script, run in the script's directory."""
    BY_HAND: str
    """The same as a person types it."""
    HINTS: tuple[Hint, ...]
    """How to watch and stop a job."""
    REMEDIES: tuple[Remedy, ...]
    """For what it refuses."""

    def settle(self, request: JobRequest, ask: Ask) -> JobRequest:
        """Fill in what only the site can tell."""
        ...

    def check(self, request: JobRequest) -> list[str]:
        """What in the request it cannot take."""
        ...

    def render(self, request: JobRequest) -> str:
        """The script. Pure: the same request gives the same text."""
        ...

    def read_id(self, said: str) -> str | None:
        """The number of the job, in what HAND_IN said."""
        ...

    def read_state(self, job: str, ask: Ask) -> State:
        """Where the job is; of an array, the task that is least far."""
        ...


def advise(scheduler: Scheduler, said: str, ask: Ask) -> str:
    """What to do about a refusal, with the valid names where the scheduler tells them."""
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
