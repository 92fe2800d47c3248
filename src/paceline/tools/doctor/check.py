"""A check: its subject, the verdict, what was seen, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from paceline.launch.preflight.node_info import NodeInfo

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One line of the page. Training runs despite a warning, but not after a failure."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""
    hosts: tuple[str, ...] = ()
    """Where it was seen, if not on all hosts."""


NodeCheck = Callable[[NodeInfo], Iterable[Check]]
"""Looks at the facts of one node."""


def check_nodes(facts: Mapping[str, NodeInfo], checks: Iterable[NodeCheck]) -> list[Check]:
    """Run checks on every node; nodes with the same result share a line.

    A result of all nodes names none of them.
    """
    hosts_of: dict[Check, list[str]] = {}
    for check in checks:
        for host, known in facts.items():
            for found in check(known):
                hosts_of.setdefault(found, []).append(host)
    return [
        replace(check, hosts=() if len(hosts) == len(facts) else tuple(hosts))
        for check, hosts in hosts_of.items()
    ]


def amount(nbytes: float) -> str:
    """A number of bytes for people.

    >>> amount(1_500_000), amount(24e9)
    ('1.5 MB', '24.0 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes:.0f} bytes"
