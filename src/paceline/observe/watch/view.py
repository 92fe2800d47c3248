"""What `paceline watch` shows: a panel for each run, or a line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.observe.numbers import format_count, format_duration, format_loss, format_percent
from paceline.observe.verdict import describe_verdict
from paceline.observe.watch.tail import RunTail, WorkerState

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

_MANY = 16
"""Workers up to which each has a line."""
_SILENT_S = 60.0


def describe_state(run: RunTail, now: float) -> str:
    """Whether it trains, is done, or has fallen silent."""
    if run.summary is not None:
        return "finished"
    if run.is_over:
        return "ended without a result"
    silent = now - run.heard
    if run.heard and silent > _SILENT_S:
        return f"silent for {format_duration(silent)}"
    return "trains" if run.heard else "starts"


def describe_run(run: RunTail, now: float | None = None) -> str:
    """Where a run stands, in one line."""
    now = time.time() if now is None else now
    parts = [run.name, describe_state(run, now)]
    if (done := len(run.history)) or run.heard:
        running = done if run.is_over else done + 1
        epochs = "?" if run.epochs is None else run.epochs
        parts.append(f"epoch {min(running, run.epochs or running)}/{epochs}")
    if run.loss is not None:
        parts.append(f"loss {format_loss(run.loss)}")
    validated = next((r for r in reversed(run.history) if r.val_loss is not None), None)
    if validated is not None:
        parts.append(f"val loss {format_loss(validated.val_loss)}")
        if validated.val_accuracy is not None:
            parts.append(f"val accuracy {format_percent(validated.val_accuracy)}")
    if not run.is_over:
        parts.append(f"{format_count(run.samples_per_s)} samples/s")
        if (left := run.left_s) is not None:
            parts.append(f"{format_duration(left)} left")
    return "  ".join(parts)


def render_runs(runs: Sequence[RunTail], now: float | None = None) -> Group:
    """The same for a terminal: with a bar, and the workers of a single run."""
    from rich.console import Group

    now = time.time() if now is None else now
    parts: list[RenderableType] = []
    for number, run in enumerate(runs):
        parts += [""] if number else []
        parts += _render_run(run, now, workers=len(runs) == 1)
    return Group(*parts)


def _render_run(run: RunTail, now: float, workers: bool) -> list[RenderableType]:
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    parts: list[RenderableType] = [Text(describe_run(run, now))]
    if run.size is not None and run.epochs is not None:
        parts.append(ProgressBar(total=run.epochs * run.size, completed=run.samples))
    if (verdict := describe_verdict(run.summary or {})) is not None:
        parts.append(Text(verdict))
    if workers and not run.is_over and run.workers:
        parts += ["", _render_workers(run.workers, now)]
    return parts


def _render_workers(workers: Sequence[WorkerState], now: float) -> Table:
    """A line for each; of many a line for each node, and at most so many of those."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    is_far = any(worker.distance is not None for worker in workers)
    names = ("rank", "step", "samples/s", "ms/step", "waited")
    for name in (*names, *(("staleness", "distance") if is_far else ()), "heard"):
        table.add_column(name, justify="left" if name == "rank" else "right", no_wrap=True)
    groups = [[worker] for worker in workers]
    if len(workers) > _MANY:
        nodes: dict[str, list[WorkerState]] = {}
        for worker in workers:
            nodes.setdefault(worker.node, []).append(worker)
        groups = list(nodes.values())
    beside = len({worker.node for worker in workers}) > 1
    for group in groups[:_MANY]:
        table.add_row(*_cells(group, now, beside, is_far))
    if len(groups) > _MANY:
        table.caption = f"and {len(groups) - _MANY} more nodes"
    return table


def _cells(group: Sequence[WorkerState], now: float, beside: bool, is_far: bool) -> list[str]:
    first = group[0]
    name = f"{first.rank} {first.node}" if beside else str(first.rank)
    if len(group) > 1:
        name = f"{first.node} ({len(group)} ranks)"
    step_s = _mean([worker.step_s for worker in group])
    far = (
        _number(_mean([worker.staleness for worker in group])),
        _number(_mean([worker.distance for worker in group])),
    )
    return [
        name,
        format_count(min(worker.step for worker in group)),
        format_count(sum(worker.samples_per_s for worker in group)),
        _number(None if step_s is None else 1000 * step_s),
        format_percent(_mean([worker.waiting for worker in group]), decimals=0),
        *(far if is_far else ()),
        _ago(now, min(worker.heard for worker in group)),
    ]


def _ago(now: float, heard: float) -> str:
    return f"{max(0.0, now - heard):.0f} s ago" if heard else "not yet"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
