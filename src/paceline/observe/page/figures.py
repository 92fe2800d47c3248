"""What a run directory tells, for a report: read once, event by event, and kept small."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from paceline.errors import DataError
from paceline.observe.history import History
from paceline.observe.page.series import Series

_BLOCK = 1 << 16
PARTS = ("compute", "wait", "communication", "data")
"""What a worker's time goes into."""
_KEYS = frozenset({"event", "time", "rank", "node", "step"})
_decode = json.JSONDecoder().raw_decode
Event = dict[str, Any]


@dataclass
class WorkerFigures:
    """What the events of one rank add up to."""

    rank: int
    node: str
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    bytes: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    split: dict[str, float] = field(default_factory=dict)
    """Seconds by what they went into; empty if the run did not end well."""


@dataclass
class RunFigures:
    """All that a report shows of a run."""

    name: str
    path: Path
    history: History
    summary: dict[str, Any]
    config: str
    workers: dict[int, WorkerFigures] = field(default_factory=dict)
    start: Event = field(default_factory=dict)
    generations: list[Event] = field(default_factory=list)
    loss: Series = field(default_factory=partial(Series, whole=True))
    """Training loss over steps."""
    step_s: Series = field(default_factory=partial(Series, whole=True))
    """Seconds of a step over steps."""
    samples: Series = field(default_factory=partial(Series, 0.25))
    """Samples of all ranks over seconds."""
    staleness: Series = field(default_factory=partial(Series, whole=True))
    distance: Series = field(default_factory=partial(Series, whole=True))
    ages: Counter[int] = field(default_factory=Counter)
    label: str = ""
    """A short name, for the ends of curves."""
    part: float = 1.0
    """How much of the events was read."""

    @property
    def began(self) -> float:
        return float(self.start.get("time") or 0.0)


def read_run(path: Path, most_bytes: int | None = None) -> RunFigures:
    """The figures of a run that has ended, runs or failed; `most_bytes`: of longer logs only parts,
    evenly spread, are read."""
    path = Path(path)
    if not (path / "events").is_dir() and not (path / "history.jsonl").exists():
        raise DataError(f"{path} is not a run directory: it has no events. Give that of a run.")
    history = path / "history.jsonl"
    found = RunFigures(
        path.resolve().name,
        path,
        History.load(history) if history.exists() else History(),
        _read_summary(path / "summary.json"),
        _read_text(path / "config.yaml"),
    )
    logs = sorted((path / "events").glob("rank-*.jsonl"))
    size = sum(log.stat().st_size for log in logs)
    found.part = 1.0 if most_bytes is None or size <= most_bytes else most_bytes / size
    found.start = next((e for log in logs[:1] for e in _head(log) if e["event"] == "start"), {})
    reader = _Reader(found)
    for log in logs:
        for event in _read_events(log, found.part):
            reader.take(event)
    for worker in found.summary.get("workers") or []:
        own = found.workers.setdefault(
            worker["rank"], WorkerFigures(worker["rank"], worker["node"])
        )
        own.split = {name: worker[name] for name in PARTS}
    return found


class _Reader:
    """Puts events where they belong."""

    def __init__(self, found: RunFigures) -> None:
        self.found = found
        self.origin = found.began

    def take(self, event: Event) -> None:
        kind = event["event"]
        if kind == "step":
            self._take_step(event)
        elif kind == "exchange":
            self._take_exchange(event)
        elif kind == "time":
            self._take_split(event)
        elif kind == "start":
            self.found.start = event
        elif kind == "generation":
            self.found.generations.append(event)
        elif kind == "exchanges":
            self._worker(event).bytes += event["bytes"]

    def _worker(self, event: Event) -> WorkerFigures:
        rank = event["rank"]
        worker = self.found.workers.get(rank)
        if worker is None:
            worker = WorkerFigures(rank, event["node"], first_s=event["time"])
            self.found.workers[rank] = worker
        return worker

    def _take_step(self, event: Event) -> None:
        worker, found = self._worker(event), self.found
        if not self.origin:
            self.origin = event["time"]
        step, samples = event["step"], event["samples"]
        worker.steps += 1
        worker.samples += samples
        worker.seconds += event["seconds"] or 0.0
        worker.bytes += event["bytes"]
        worker.last_s = event["time"]
        if event["loss"] is not None and samples:
            found.loss.add(step, event["loss"], samples)
        if event["seconds"] is not None:
            found.step_s.add(step, event["seconds"])
        found.samples.add(max(0.0, event["time"] - self.origin), samples)

    def _take_split(self, event: Event) -> None:
        """Of an epoch; the summary of a run that ends well has all of it."""
        worker = self._worker(event)
        worker.split = {name: worker.split.get(name, 0.0) + (event[name] or 0.0) for name in PARTS}

    def _take_exchange(self, event: Event) -> None:
        if (age := event.get("staleness")) is not None:
            self.found.staleness.add(event["step"], age)
            self.found.ages[int(age)] += 1
        if (distance := event.get("distance")) is not None:
            self.found.distance.add(event["step"], distance)


def _read_events(log: Path, part: float) -> Iterator[Event]:
    """Whole lines of all of a log, or of blocks of it; what is torn or foreign is passed over."""
    with log.open("rb") as file:
        if part >= 1.0:
            yield from filter(None, map(_parse, file))
            return
        size = os.fstat(file.fileno()).st_size
        for begin in range(0, size, int(_BLOCK / part)):
            file.seek(begin)
            if begin:
                file.readline()
            for line in file.read(_BLOCK).splitlines(keepends=True):
                if (event := _parse(line)) is not None:
                    yield event


def _head(log: Path) -> Iterator[Event]:
    with log.open("rb") as file:
        for _, line in zip(range(20), file, strict=False):
            if (event := _parse(line)) is not None:
                yield event


def _parse(line: bytes) -> Event | None:
    try:
        event = _decode(line.decode())[0]
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.keys() >= _KEYS else None


def _read_summary(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        if isinstance(found, dict):
            return found
    return {}


def _read_text(path: Path) -> str:
    with suppress(OSError, ValueError):
        return path.read_text()
    return ""
