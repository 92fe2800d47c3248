"""The tasks of a job array: every combination of seeds and swept values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from paceline.errors import ConfigError

MOST_TASKS = 1000
"""Slurm's limit for an array unless its administrator allows more."""
Settings = tuple[tuple[str, str], ...]
"""The settings of one task: key and value."""


def make_tasks(seeds: str | None, sweeps: Sequence[str]) -> tuple[Settings, ...]:
    """The product of all values; seeds change fastest. All faults are reported at once.

    >>> make_tasks("1-2", ["optimizer.lr=0.1"])
    ((('optimizer.lr', '0.1'), ('seed', '1')), (('optimizer.lr', '0.1'), ('seed', '2')))
    """
    faults: list[str] = []
    axes: list[tuple[str, list[str]]] = []
    for text in sweeps:
        key, _, values = text.partition("=")
        parts = [value.strip() for value in values.split(",")]
        if not key.strip() or not all(parts):
            faults.append(f"--sweep is {text!r}, expected: KEY=V1,V2,...")
        axes.append((key.strip(), parts))
    if seeds is not None:
        numbers = _read_seeds(seeds)
        if not numbers:
            faults.append(f"--array-seeds is {seeds!r}, expected: numbers as 1-5 or 1,4,7-9")
        axes.append(("seed", numbers))
    faults += _twice([key for key, _ in axes])
    size = 1
    for _, values_of_key in axes:
        size *= len(values_of_key)
    if size > MOST_TASKS:
        faults.append(f"the array has {size} tasks, expected at most {MOST_TASKS}: submit parts")
    if faults:
        raise ConfigError("; ".join(faults))
    if not axes:
        return ()
    pairs = [[(key, value) for value in values] for key, values in axes]
    return tuple(itertools.product(*pairs))


def _twice(keys: list[str]) -> list[str]:
    repeated = sorted({key for key in keys if keys.count(key) > 1})
    return [f"{key} is swept twice; give all of its values at once" for key in repeated]


def _read_seeds(text: str) -> list[str]:
    """The numbers of `1-3,7`; none if the text is anything else."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part.strip(), re.ASCII)
        if not match:
            return []
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last <= first + MOST_TASKS:
            return []
        numbers += range(first, last + 1)
    return [str(number) for number in dict.fromkeys(numbers)]
