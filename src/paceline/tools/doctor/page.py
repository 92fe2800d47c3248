"""The page that doctor prints, and the same as one JSON object."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from paceline.launch.preflight.node_info import NodeInfo
from paceline.tools.doctor.check import Check
from paceline.tools.doctor.world import PairSeen, Seen

_WORDS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_NAME_WIDTH = 16
_LINES = 4
"""Hosts that get a line of their own."""


@dataclass(frozen=True)
class Diagnosis:
    """Everything that doctor found."""

    checks: tuple[Check, ...]
    facts: dict[str, NodeInfo] = field(default_factory=dict)
    world: Seen | None = None
    """What the ranks measured, if they were started."""
    tried: bool = True

    @property
    def failures(self) -> int:
        return sum(check.verdict == "fail" for check in self.checks)


def render_json(diagnosis: Diagnosis) -> str:
    """One object: would training run, the checks, the facts of all nodes, what was measured."""
    return json.dumps(
        {
            "runs": diagnosis.failures == 0,
            "checks": [dataclasses.asdict(check) for check in diagnosis.checks],
            "world": diagnosis.world,
            "nodes": {host: dataclasses.asdict(one) for host, one in diagnosis.facts.items()},
        }
    )


def render_page(diagnosis: Diagnosis, columns: int = 100) -> Iterator[tuple[str, str]]:
    """The lines of the page, each with a style for terminals (empty: plain)."""
    for check in condense(diagnosis.checks):
        yield from _render_check(check, columns)
    if diagnosis.world is not None and diagnosis.world["pairs"]:
        yield "", ""
        yield from (("", line) for line in render_pairs(diagnosis.world["pairs"]))
    yield "", ""
    yield _conclude(diagnosis)


def condense(checks: Sequence[Check]) -> list[Check]:
    """Of many hosts with different results that are all ok, show the first; show all problems."""
    many = Counter(check.name for check in checks if check.verdict == "ok")
    kept: list[Check] = []
    for check in checks:
        left = many[check.name] - 1
        if check.verdict != "ok" or left < _LINES:
            kept.append(check)
        elif not any(one.name == check.name and one.verdict == "ok" for one in kept):
            detail = f"{check.detail} (similar on {left} more)"
            kept.append(replace(check, detail=detail))
    return kept


def _render_check(check: Check, columns: int) -> Iterator[tuple[str, str]]:
    where = f"{', '.join(check.hosts)}: " if check.hosts else ""
    margin = " " * (_NAME_WIDTH + 7)
    width = max(columns - len(margin), 40)
    first, *more = _wrap(f"{where}{check.detail}", width)
    name = check.name if len(check.name) <= _NAME_WIDTH else check.name.split(" (")[0]
    yield _STYLES[check.verdict], f"{_WORDS[check.verdict]:<5} {name:<{_NAME_WIDTH}} {first}"
    yield from (("", f"{margin}{line}") for line in more)
    if check.remedy and check.verdict != "ok":
        yield from (("", f"{margin}{line}") for line in _wrap(f"-> {check.remedy}", width))


def _wrap(text: str, width: int) -> list[str]:
    """Paths and commands are not broken, so that they can be copied."""
    lines: list[str] = []
    for line in text.splitlines():
        lines += textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def render_pairs(pairs: list[PairSeen]) -> list[str]:
    """A table of latencies and rates between nodes.

    >>> render_pairs([{"nodes": ["a", "b"], "small_s": 4e-5, "bytes_per_s": 1.2e8}])
    ['between nodes   4 KB message      4 MB', 'a - b                  40 us  0.12 GB/s']
    """
    names = [" - ".join(pair["nodes"]) for pair in pairs]
    width = max(map(len, [*names, "between nodes"]))
    rows = [f"{'between nodes':<{width}}   4 KB message      4 MB"]
    for name, pair in zip(names, pairs, strict=True):
        latency, rate = f"{pair['small_s'] * 1e6:.0f} us", f"{pair['bytes_per_s'] / 1e9:.2f} GB/s"
        rows.append(f"{name:<{width}}   {latency:>12}  {rate:>8}")
    return rows


def _conclude(diagnosis: Diagnosis) -> tuple[str, str]:
    count = diagnosis.failures
    if count:
        problems = "1 problem" if count == 1 else f"{count} problems"
        return _STYLES["fail"], f"Training would not run: {problems}."
    if not diagnosis.tried:
        return "", "No problem found; no ranks were started (--quick)."
    return _STYLES["ok"], "Training would run here."
