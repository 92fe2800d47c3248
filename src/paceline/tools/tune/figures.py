"""The records of a trial's ranks as one estimate of its speed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal, TypedDict

from paceline.observe import TimeSplit
from paceline.observe.waiting import RunFacts, Waiting, split_waiting


class Mark(TypedDict):
    """A line that a rank has written (see `observe/trial.py`)."""

    seconds: float
    samples: float
    steps: int
    wait_s: float
    spent_s: float
    peak_bytes: int
    shared_bytes: int
    workers: int
    unit: str
    facts: dict[str, bool]


Count = Literal["seconds", "samples", "steps", "wait_s", "spent_s"]
Marks = Mapping[int, Sequence[Mark]]
"""For each rank the lines that it has written."""

_WARM_STEPS = 2
"""Excluded: the first steps allocate what later ones reuse."""


@dataclass(frozen=True)
class Estimate:
    """The speed of a setting, as far as it was measured."""

    unit: str
    """What is counted: samples; steps if a loop takes no batches from `shard`; ..."""
    rate: float
    """Units per second, over all ranks."""
    error: float = 0.0
    """Standard error of the rate, relative to it."""
    waiting: float | None = None
    """The share of its time that a rank waits for others."""
    batch: float | None = None
    """Units in a step of all ranks."""
    steps: int = 0
    """Steps of the rank with the fewest."""
    seconds: float = 0.0
    """How long the measurement took."""
    windows: int = 0
    """The number of intervals measured."""
    rank_bytes: int | None = None
    """The peak of the rank with the highest."""
    total_bytes: int | None = None
    """The peak of all ranks; what they share counts once."""
    shared_bytes: int = 0
    missing: int = 0
    """Ranks that could not write here, assumed to be like the others."""
    waits: Waiting | None = None
    """Why ranks wait; None if some ranks are missing."""
    facts: RunFacts | None = None
    """What advice depends on."""


def read_marks(folder: Path) -> dict[int, list[Mark]]:
    """Read the lines of all ranks, except those still being written."""
    return {
        int(path.stem.removeprefix("rank-")): _lines(path)
        for path in sorted(folder.glob("rank-*.jsonl"))
    }


def _lines(path: Path) -> list[Mark]:
    *lines, _ = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]


def estimate(marks: Marks, ranks: int, warm_up_s: float = 0.0) -> Estimate | None:
    """Add up the ranks, each by its own clock, after its first steps and `warm_up_s`.

    None while a rank has no step to measure.
    """
    by_rank = {rank: _warm(lines, warm_up_s) for rank, lines in marks.items() if lines}
    spans = list(by_rank.values())
    if not spans or any(len(span) < 2 for span in spans):
        return None
    ends = [(span[0], span[-1]) for span in spans]
    workers = spans[0][-1]["workers"]
    scale = max(1.0, workers / len(spans))
    rates = [_gain(end, "samples") / _gain(end, "seconds") for end in ends]
    spent = sum(_gain(end, "spent_s") for end in ends)
    peaks = [last["peak_bytes"] for _, last in ends]
    shared = min(max(last["shared_bytes"] for _, last in ends), min(peaks))
    longest = max(spans, key=len)
    steps = int(min(_gain(end, "steps") for end in ends))
    missing = max(0, workers - len(spans))
    times = {rank: _time((span[0], span[-1])) for rank, span in by_rank.items()}
    return Estimate(
        unit=spans[0][-1]["unit"],
        rate=scale * sum(rates),
        error=_relative_error(longest),
        waiting=sum(_gain(end, "wait_s") for end in ends) / spent if spent else None,
        batch=scale * sum(_gain(end, "samples") / _gain(end, "steps") for end in ends),
        steps=steps,
        seconds=max(_gain(end, "seconds") for end in ends),
        windows=len(longest) - 1,
        rank_bytes=max(peaks),
        total_bytes=round(ranks * fmean(peak - shared for peak in peaks)) + shared,
        shared_bytes=shared,
        missing=missing,
        waits=split_waiting(times, steps) if not missing else None,
        facts=RunFacts(**spans[0][-1]["facts"]),
    )


def _warm(lines: Sequence[Mark], warm_up_s: float) -> list[Mark]:
    """The lines from the end of the warm-up on that have a new step."""
    begin_s = lines[0]["seconds"] + warm_up_s
    warm = [s for s in lines if s["seconds"] >= begin_s and s["steps"] >= _WARM_STEPS]
    return [*warm[:1], *(new for old, new in pairwise(warm) if new["steps"] > old["steps"])]


def _gain(ends: tuple[Mark, Mark], name: Count) -> float:
    first, last = ends
    return float(last[name] - first[name])


def _time(ends: tuple[Mark, Mark]) -> TimeSplit:
    wait_s = _gain(ends, "wait_s")
    return TimeSplit(compute=_gain(ends, "spent_s") - wait_s, wait=wait_s)


def _relative_error(lines: Iterable[Mark]) -> float:
    """Of the mean over the intervals, from how much they differ."""
    rates = [_gain(ends, "samples") / _gain(ends, "seconds") for ends in pairwise(lines)]
    if len(rates) < 2 or not any(rates):
        return 1.0
    return float(stdev(rates) / len(rates) ** 0.5 / fmean(rates))
