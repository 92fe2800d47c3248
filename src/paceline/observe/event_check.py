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
    kept = _without_undone(events)
    generations = [event for event in kept if event["event"] == "generation"]
    if not generations:
        found.problems.append("no event says with how many ranks the run began")
        return found
    size = generations[0]["samples_per_epoch"]
    epochs = _check_epochs([event for event in kept if event["event"] == "epoch"], size, found)
    if size is not None and not generations[0]["asynchronous"]:
        steps = [event for event in kept if event["event"] == "step"]
        for epoch in epochs:
            _check_epoch(epoch["epoch"], epochs, generations, steps, size, found)
    if not epochs:
        found.problems.append("no epoch has ended")
    found.facts.append(_describe(epochs, generations))
    return found


def _describe(epochs: Sequence[Event], generations: Sequence[Event]) -> str:
    asked = sum(event.get("asked", 0) for event in generations)
    lost = sum(len(event["lost"]) for event in generations) - asked
    joined = sum(event.get("joined", 0) for event in generations)
    starts = sum(map(_is_start, generations))
    return (
        f"{len(epochs)} epoch{'s' * (len(epochs) != 1)}, {len(generations)} "
        f"generation{'s' * (len(generations) != 1)} of the world, {lost} "
        f"rank{'s' * (lost != 1)} lost"
        f"{f', {asked} left' * bool(asked)}{f', {joined} joined' * bool(joined)}"
        + (f", {starts - 1} time{'s' * (starts != 2)} resumed" if starts > 1 else "")
    )


def _without_undone(events: Sequence[Event]) -> list[Event]:
    """A run that was started again from a checkpoint has not done what came after that."""
    kept: list[Event] = []
    for event in sorted(events, key=_order):
        if _is_start(event):
            after = event.get("after")
            last = None if after is None else tuple(after)
            kept = [
                e
                for e in kept
                if e["step"] <= event["step"] and (last is None or _world_of(e) <= last)
            ]
        kept.append(event)
    return kept


def _is_start(event: Event) -> bool:
    """Whether ranks were started, at the beginning or from a checkpoint."""
    return bool(event["event"] == "generation" and event["taken"] is None)


def _order(event: Event) -> tuple[int, bool]:
    """By starts of the run, each begins with rank 0's event, though a rank that does not wait for
    others may have written one before; within a start as they come."""
    return event.get("start", 0), "start" in event and not _is_start(event)


def _world_of(event: Event) -> tuple[int, int]:
    """In which start of the run, and in which generation of its world."""
    return event.get("start", 0), event.get("generation") or 0


def _check_epochs(recorded: Sequence[Event], size: int | None, found: EventCheck) -> list[Event]:
    """The epochs in their order; several ranks may have recorded one."""
    first = {event["epoch"]: event for event in reversed(recorded)}
    epochs = [first[number] for number in sorted(first)]
    if list(first) and sorted(first) != list(range(1, len(first) + 1)):
        found.problems.append(f"only the epochs {sorted(first)} were recorded")
    for event in recorded:
        if size is not None and event["samples"] != size:
            found.problems.append(
                f"epoch {event['epoch']} had {event['samples']} samples of {size}"
            )
    return epochs


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
    began, last = ends.get(number - 1, 0), ends[number]
    stretches = _stretches(number, generations)
    left: Spans = [(0, size)]
    for worlds, event in zip(stretches, [*(s[0] for s in stretches[1:]), None], strict=True):
        rest: Spans = [] if event is None else [(a, b) for a, b in event["left"]]
        until = last if event is None else event["step"]
        if not _contains(left, rest):
            found.problems.append(f"epoch {number}: places {rest} are not among {left}")
        part = [
            step
            for step in steps
            if began < step["step"] <= until and step["samples"] and _is_of(step, worlds)
        ]
        seen, missing = _count_samples(part, event)
        used = _count(left) - _count(rest)
        if steps and (seen > used or (seen < used and not missing)):
            found.problems.append(
                f"epoch {number}, steps {began + 1} to {until}: ranks had {seen} samples, and "
                f"{used} were used"
            )
        left, began = rest, until


def _stretches(number: int, generations: Sequence[Event]) -> list[list[Event]]:
    """The worlds that an epoch was trained in, split where the rest of it was dealt anew."""
    found: list[list[Event]] = [[]]
    for event in generations:
        if event["epoch"] == number and event["left"] is not None:
            found.append([event])
        elif event["epoch"] == number and event.get("after") is not None:  # dealt as it was
            found[-1].append(event)
        elif event["epoch"] <= number:
            found[-1] = [event]
    return found


def _is_of(step: Event, generations: Sequence[Event]) -> bool:
    """Whether a step was taken in one of these; a rank that was lost may have been a step further
    than all others. Older runs did not write their starts."""
    return any(
        _world_of(step) == _world_of(event)
        or ("start" not in step and step["step"] <= event["step"])
        for event in generations
    )


def _count_samples(steps: Sequence[Event], event: Event | None) -> tuple[int, bool]:
    """Samples that count, of these steps, which an event of lost ranks ends; and whether the last
    step of such a rank is not there."""
    if event is None or event["taken"] is None:
        return sum(step["samples"] for step in steps), False
    seen, missing = 0, False
    for rank, taken in enumerate(event["taken"]):
        own = [step["samples"] for step in steps if step["rank"] == rank][:taken]
        seen += sum(own)
        missing |= len(own) == taken - 1 and rank in event["lost"]
    return seen, missing


def _contains(outer: Spans, inner: Spans) -> bool:
    return all(any(a <= first and last <= b for a, b in outer) for first, last in inner)


def _count(spans: Spans) -> int:
    return sum(last - first for first, last in spans)
