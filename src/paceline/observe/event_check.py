"""Do the events of a run prove that every sample was used once in each epoch?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
Spans = list[tuple[int, int]]


@dataclass
class EventCheck:
    """What was found: what is wrong, and what could be told."""

    problems: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not self.problems


def check_events(events: Sequence[Event]) -> EventCheck:
    """Follow each epoch through the generations of the world that it was trained in."""
    found = EventCheck()
    generations = [event for event in events if event["event"] == "generation"]
    epochs = [event for event in events if event["event"] == "epoch" and event["rank"] == 0]
    if not generations:
        found.problems.append("no event says with how many ranks the run began")
        return found
    size = generations[0]["samples_per_epoch"]
    _check_epochs(epochs, size, found)
    if size is not None and not generations[0]["asynchronous"]:
        steps = [event for event in events if event["event"] == "step"]
        for epoch in epochs:
            _check_epoch(epoch["epoch"], epochs, generations, steps, size, found)
    lost = sum(len(event["lost"]) for event in generations)
    found.facts.append(
        f"{len(epochs)} epoch{'s' * (len(epochs) != 1)}, {len(generations)} "
        f"generation{'s' * (len(generations) != 1)} of the world, {lost} "
        f"rank{'s' * (lost != 1)} lost"
    )
    return found


def _check_epochs(epochs: Sequence[Event], size: int | None, found: EventCheck) -> None:
    numbers = [event["epoch"] for event in epochs]
    if numbers != list(range(1, len(numbers) + 1)):
        found.problems.append(f"epochs were recorded in the order {numbers}")
    for event in epochs:
        if size is not None and event["samples"] != size:
            found.problems.append(
                f"epoch {event['epoch']} had {event['samples']} samples of {size}"
            )


def _check_epoch(
    number: int,
    epochs: Sequence[Event],
    generations: Sequence[Event],
    steps: Sequence[Event],
    size: int,
    found: EventCheck,
) -> None:
    """What each generation used of an epoch: places that the next one has not, and as many as the
    steps of its ranks say."""
    ends = {event["epoch"]: event["step"] for event in epochs}
    first, last = ends.get(number - 1, 0), ends[number]
    here = (event for event in generations if event["epoch"] == number)
    parts = [event for event in here if event["left"] is not None]
    left: Spans = [(0, size)]
    began = first
    for event in [*parts, None]:
        rest: Spans = [] if event is None else [(a, b) for a, b in event["left"]]
        until = last if event is None else event["step"]
        if not _contains(left, rest):
            found.problems.append(f"epoch {number}: places {rest} are not among {left}")
        used = _count(left) - _count(rest)
        seen = sum(e["samples"] for e in steps if began < e["step"] <= until)
        whole = event is None  # the last lines of a rank that was lost may not be on disk
        if seen > used or (whole and steps and seen != used):
            found.problems.append(
                f"epoch {number}, steps {began + 1} to {until}: ranks had {seen} samples, and "
                f"{used} were used"
            )
        left, began = rest, until


def _contains(outer: Spans, inner: Spans) -> bool:
    return all(any(a <= first and last <= b for a, b in outer) for first, last in inner)


def _count(spans: Spans) -> int:
    return sum(last - first for first, last in spans)
