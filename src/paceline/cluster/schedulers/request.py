"""What a job requests from a scheduler: resources, and the command to run with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.quantities import read_memory, read_time
from paceline.errors import ConfigError

SCRIPT = "job.sh"
"""The name of the script in the run directory."""
UNTRIED = "Its scripts are tested against recorded ones, but not on a real cluster yet. "
"""In the help of schedulers that we have no cluster of."""
_USUAL_SAVING_S = 90


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One job. Amounts are per rank or per node, as their names say."""

    command: tuple[str, ...]
    """What follows `python -m paceline`."""
    run_dir: Path
    """Where script, log and exit code are."""
    directory: Path
    """Where the command runs."""
    python: str
    name: str
    nodes: int = 1
    ranks_per_node: int = 1
    threads: int = 1
    memory_per_rank: int | None = None
    """Megabytes."""
    time: int | None = None
    """Seconds; without it the scheduler's own limit applies."""
    save_time: int | None = None
    """Seconds before that limit at which the job is told to save."""
    queue: str | None = None
    account: str | None = None
    gpus_per_node: int | None = None
    modules: tuple[str, ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()
    """Variables of the job; one without a value has that of the submitting shell."""
    requeue: int = 0
    """How often the job may be requeued after it has saved."""
    after: tuple[str, ...] = ()
    """Jobs that must succeed before this one starts."""
    extra: tuple[str, ...] = ()
    """Directives in the scheduler's own syntax."""
    pe: str | None = None
    """The parallel environment of Grid Engine."""
    tasks: tuple[tuple[str, ...], ...] = ()
    """The arguments that each task of an array adds to the command; empty for a single job."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def cores_per_node(self) -> int:
        return self.ranks_per_node * self.threads

    @property
    def memory_per_node(self) -> int | None:
        """Megabytes."""
        return None if self.memory_per_rank is None else self.memory_per_rank * self.ranks_per_node

    @property
    def passed(self) -> list[str]:
        """The variables whose values the scheduler passes on, and the script does not contain."""
        return [name for name, value in self.env if value is None]

    @property
    def warning_s(self) -> int:
        """How long before the time limit the job is told to save: less for short jobs."""
        if self.save_time is not None:
            return self.save_time
        return _USUAL_SAVING_S if self.time is None else min(_USUAL_SAVING_S, self.time // 5)


def make_request(
    given: Mapping[str, object],
    fixed: Mapping[str, object],
    check: Callable[[JobRequest], list[str]],
) -> JobRequest:
    """A request from options as they were typed, and from values known already.

    `check` lists what the scheduler in question would refuse. All faults are reported at once.
    """
    values: dict[str, Any] = dict(fixed)
    faults: list[str] = []
    for name, text in given.items():
        if text is None or (isinstance(text, list) and not text):
            continue
        try:
            values[name] = _READERS[name][0](text)
        except ValueError as error:
            wrong = error.args[0] if isinstance(text, list) else text
            faults.append(f"{option(name)} is {wrong!r}, expected: {_READERS[name][1]}")
    request = JobRequest(**values)
    faults += [*_contradictions(request), *check(request)]
    if faults:
        raise ConfigError("; ".join(faults))
    return request


def option(name: str) -> str:
    """The command-line option of a field.

    >>> option("ranks_per_node"), option("modules")
    ('--ranks-per-node', '--module')
    """
    return "--" + {"modules": "module"}.get(name, name).replace("_", "-")


def fault(name: str, value: object, expected: str) -> str:
    """One sentence about a field with a wrong value.

    >>> fault("queue", "a b", "a name without spaces")
    "--queue is 'a b', expected: a name without spaces"
    """
    return f"{option(name)} is {value!r}, expected: {expected}"


def named(request: JobRequest) -> Iterator[tuple[str, str]]:
    """The fields that directives hold as text, and their values."""
    for name in ("name", "queue", "account", "pe"):
        value = getattr(request, name)
        if value is not None:
            yield name, value


def _contradictions(request: JobRequest) -> Iterator[str]:
    if request.save_time is not None and request.time is None:
        yield "--save-time counts back from the time limit: give --time, too"
    elif request.time is not None and request.warning_s >= request.time:
        yield (
            f"--save-time is {request.save_time} s and --time {request.time} s: no time is left "
            "to train; expected: a --save-time below --time"
        )


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) < least:
            raise ValueError(text)
        return int(text)

    return read


def _line(text: str) -> str:
    """Text for a directive: one line that is not empty."""
    if not text.strip() or not text.isprintable():
        raise ValueError(text)
    return text


def _each(read: Callable[[str], object]) -> Callable[[list[str]], tuple[object, ...]]:
    return lambda texts: tuple(read(text) for text in texts)


def _variable(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(text)
    return name, value if equals else None


def _module(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


def _ids(texts: list[str]) -> tuple[str, ...]:
    ids = [part.strip() for text in texts for part in text.split(",")]
    for one in ids:
        if not re.fullmatch(r"[A-Za-z0-9_.\[\]-]+", one):
            raise ValueError(one)
    return tuple(ids)


_POSITIVE = (_whole(1), "a whole number of 1 or more")
_TEXT = (_line, "text on one line")
_TIME = (read_time, 'a time with its unit, as "90s", "30m", "2h", or "12:00:00", "1-12:00:00"')

_READERS: dict[str, tuple[Callable[[Any], object], str]] = {
    "nodes": _POSITIVE,
    "ranks_per_node": _POSITIVE,
    "threads": _POSITIVE,
    "gpus_per_node": _POSITIVE,
    "memory_per_rank": (read_memory, 'an amount with its unit, as "500M", "2G", "1.5T"'),
    "time": _TIME,
    "save_time": _TIME,
    "requeue": (_whole(0), "a whole number of 0 or more"),
    "name": _TEXT,
    "queue": _TEXT,
    "account": _TEXT,
    "pe": _TEXT,
    "modules": (_each(_module), "the name of a module"),
    "env": (_each(_variable), "NAME or NAME=VALUE"),
    "after": (_ids, "numbers of jobs with commas between them"),
    "extra": (_each(_line), "one directive on one line, as the scheduler writes it"),
}
"""How each option is parsed, and what it should be if it cannot be."""
