"""Hosts that ranks may run on, and how ranks are spread over them."""

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import LaunchError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")
_LINE = re.compile(r"(?P<name>[^\s:]+)(?:\s*:\s*|\s+(?:slots\s*=\s*)?)?(?P<slots>\d+)?(?:\s+.*)?")

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
"""How hosts are reached: it never asks for a password, and never waits for ever."""


@dataclass(frozen=True)
class Host:
    """A machine and the number of ranks it takes; None: unknown, so one per core."""

    name: str
    slots: int | None = None


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Read `a:16,b:16`; a host named without a number takes as many ranks as it has cores.

    >>> parse_hosts("a:2,b")
    (Host(name='a', slots=2), Host(name='b', slots=None))
    """
    return _merge(_host(*part.strip().partition(":")[::2], part) for part in text.split(","))


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Read a file with a host per line: `a`, `a 16`, `a:16` or `a slots=16`; # begins a comment.

    A host on several lines, as in the machine files of some schedulers, takes the ranks of all of
    them.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"the host file {path} cannot be read: {error}") from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    hosts = []
    for line in filter(None, lines):
        found = _LINE.fullmatch(line)
        name, slots = (found["name"], found["slots"] or "") if found else (line, "")
        hosts.append(_host(name, slots, line))
    if not hosts:
        raise LaunchError(f"the host file {path} names no host")
    repeated = len({host.name for host in hosts}) < len(hosts)
    if repeated:  # a machine file: a line for each rank
        hosts = [Host(host.name, 1 if host.slots is None else host.slots) for host in hosts]
    return _merge(hosts)


def spread(ranks: int, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Assign ranks to hosts as evenly as their slots allow, neighbours side by side.

    Ranks beyond the slots are spread evenly, too. Hosts that get none are omitted.

    >>> spread(5, (Host("a", 4), Host("b", 2)))
    (Host(name='a', slots=3), Host(name='b', slots=2))
    """
    counts = [0] * len(hosts)
    slots = [host.slots or 1 for host in hosts]
    for _ in range(ranks):
        free = [i for i, taken in enumerate(counts) if taken < slots[i]]
        if not free:  # a further round, with as many slots again
            slots = [have + (host.slots or 1) for have, host in zip(slots, hosts, strict=True)]
            free = list(range(len(hosts)))
        counts[min(free, key=lambda i: counts[i])] += 1
    assigned = zip(hosts, counts, strict=True)
    return tuple(Host(host.name, count) for host, count in assigned if count)


def is_here(name: str, this: str | None = None) -> bool:
    """Whether the name is this machine's, with or without its domain.

    >>> is_here("n07.cluster", "n07"), is_here("n08", "n07")
    (True, False)
    """
    mine = socket.gethostname() if this is None else this
    if name == "localhost":
        return True
    return name == mine or name.partition(".")[0] == mine.partition(".")[0]


def _host(name: str, slots: str, text: str) -> Host:
    if not _NAME.fullmatch(name) or (slots and (not slots.isdecimal() or int(slots) < 1)):
        raise LaunchError(
            f"{text.strip()!r} is not a host; expected NAME or NAME:RANKS, as in a:16,b:16"
        )
    return Host(name, int(slots) if slots else None)


def _merge(hosts: Iterable[Host]) -> tuple[Host, ...]:
    found: dict[str, int | None] = {}
    for host in hosts:
        before = found.get(host.name)
        found[host.name] = host.slots if before is None else before + (host.slots or 1)
    return tuple(Host(name, slots) for name, slots in found.items())
