"""Plots of how a run went: its speed, where time went, and what was sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import isfinite

from paceline.observe.history import TimeSplit
from paceline.observe.numbers import format_count, format_percent
from paceline.observe.page.figures import RunFigures, WorkerFigures
from paceline.observe.page.plots import Curve, Plot, Points, draw_counts, draw_curves, draw_parts
from paceline.observe.page.series import Series

_MANY = 32
"""Workers above which bars are of nodes, or of the extremes."""
_MOST_BYTES_UNIT = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def plot_working(runs: Sequence[RunFigures]) -> list[Plot]:
    """All that the events and the summary tell of the runs' course."""
    plots = [
        plot_time(runs),
        _plot_throughput(runs),
        _plot_series("Time of a step", "ms", "step", {r.label: r.step_s for r in runs}, 1e3),
        _plot_series("Training loss in each step", "", "step", {r.label: r.loss for r in runs}),
        _plot_ages(runs),
        _plot_series("Distance from the centre", "", "step", {r.label: r.distance for r in runs}),
        _plot_bytes(runs),
    ]
    return [plot for plot in plots if plot is not None]


def plot_time(runs: Sequence[RunFigures]) -> Plot | None:
    """Where the time of each worker went; of several runs, or without figures, the mean."""
    rows: list[tuple[str, Mapping[str, float], str]] = []
    for run in runs:
        splits = _splits(run) if len(runs) == 1 else []
        if not splits:
            split = sum((record.time for record in run.history), TimeSplit())
            splits = [("all ranks" if len(runs) == 1 else run.label, split)]
        rows += [
            (name, split.shares(), f"{split.total:.1f}") for name, split in splits if split.total
        ]
    if not rows:
        return None
    title = "Where the time went"
    svg = draw_parts(title, [(name, shares) for name, shares, _ in rows])
    head = ["worker" if len(runs) == 1 else "run", *next(iter(rows))[1], "seconds"]
    table = [
        [n, *(format_percent(v, decimals=1) for v in s.values()), total] for n, s, total in rows
    ]
    return Plot(title, "shares of each worker's time" if len(runs) == 1 else "mean over ranks",
                svg, head, table, of_parts=True)  # fmt: skip


def _splits(run: RunFigures) -> list[tuple[str, TimeSplit]]:
    """Of all workers; of very many, of their nodes, or of those that waited least and most."""
    workers = [worker for _, worker in sorted(run.workers.items()) if worker.split]
    nodes = {worker.node: 0 for worker in workers}
    if len(workers) <= _MANY:
        beside = len(nodes) > 1
        return [(f"rank {w.rank}" + f" · {w.node}" * beside, TimeSplit(**w.split)) for w in workers]
    if len(nodes) <= _MANY:
        return [
            (node, sum((TimeSplit(**w.split) for w in workers if w.node == node), TimeSplit()))
            for node in nodes
        ]
    by_wait = sorted(workers, key=lambda worker: worker.split["wait"])
    some = [*by_wait[: _MANY // 2], *by_wait[-_MANY // 2 :]]
    return [(f"rank {w.rank} · {w.node}", TimeSplit(**w.split)) for w in some]


def _plot_throughput(runs: Sequence[RunFigures]) -> Plot | None:
    curves = []
    for number, run in enumerate(runs):
        points = [(x, y / run.part) for x, y in run.samples.rates()] if run.part == 1.0 else []
        if len(points) < 4 or _is_coarse(run.samples):
            ends = accumulate(record.seconds for record in run.history)
            points = [(x, r.samples_per_s) for x, r in zip(ends, run.history, strict=True)]
        curves.append(Curve(run.label, _smooth(points, _readable(run)), number))
    return _make("Throughput", "samples/s", "seconds since the start", curves, zero=True)


def _readable(run: RunFigures) -> int:
    """Into how many points the throughput goes, so that each is made of a dozen steps."""
    steps = sum(worker.steps for worker in run.workers.values()) / max(1, len(run.workers))
    return int(min(120.0, max(8.0, steps / 12)))


def _is_coarse(series: Series) -> bool:
    """Whether bins are so narrow that many are empty: steps are longer than a bin."""
    numbers = sorted(series.bins)
    return not numbers or len(numbers) < 0.8 * (numbers[-1] - numbers[0] + 1)


def _smooth(points: Points, most: int = 120) -> Points:
    """Neighbours together, so that the curve can be read."""
    size = -(-len(points) // most) if points else 1
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def _plot_series(
    title: str,
    unit: str,
    x_name: str,
    series: Mapping[str, Series],
    times: float = 1.0,
) -> Plot | None:
    curves = [
        Curve(name, _smooth([(x, times * y) for x, y in one.means()], 240), number)
        for number, (name, one) in enumerate(series.items())
    ]
    return _make(title, unit, x_name, curves, zero=unit == "ms")


def _finite(curve: Curve) -> Curve:
    points = [(x, y) for x, y in curve.points if isfinite(x) and isfinite(y)]
    return replace(curve, points=points)


def _make(title: str, unit: str, x_name: str, curves: Sequence[Curve], zero: bool) -> Plot | None:
    curves = [_finite(curve) for curve in curves]
    curves = [curve for curve in curves if len(curve.points) > 1]
    if not curves:
        return None
    svg = draw_curves(title, unit or title.lower(), x_name, curves, zero)
    rows = [
        [*([curve.name] if len(curves) > 1 else []), f"{x:,.5g}", f"{y:,.5g}"]
        for curve in curves
        for x, y in curve.points[:: max(1, len(curve.points) // 40)]
    ]
    head = [*(["run"] if len(curves) > 1 else []), x_name, unit or title.lower()]
    return Plot(title, unit, svg, head, rows)


def _plot_ages(runs: Sequence[RunFigures]) -> Plot | None:
    """How stale exchanges were: a histogram of one run, the mean over steps of several."""
    if len(runs) > 1:
        series = {run.label: run.staleness for run in runs}
        return _plot_series("Staleness", "updates of others", "step", series)
    ages = runs[0].ages
    if not ages:
        return None
    total = sum(ages.values())
    rows = [[str(a), format_count(n), format_percent(n / total)] for a, n in sorted(ages.items())]
    svg = draw_counts("Staleness", "updates of others between a pull and the push", ages)
    return Plot("Staleness", "% of exchanges", svg, ["staleness", "exchanges", "share"], rows[:200])


def _plot_bytes(runs: Sequence[RunFigures]) -> Plot | None:
    """How much each worker sent, if any did."""
    if len(runs) > 1:
        return None
    workers = [worker for _, worker in sorted(runs[0].workers.items())]
    most = max((worker.bytes for worker in workers), default=0)
    if not most or len(workers) > 512:
        return None
    unit, factor = next(((u, f) for u, f in _MOST_BYTES_UNIT if most >= f), ("bytes", 1.0))
    points = [(float(w.rank), w.bytes / factor / runs[0].part) for w in workers]
    svg = draw_curves("Sent by each rank", unit, "rank", [Curve("sent", points)], zero=True)
    return Plot(
        "Sent by each rank",
        unit,
        svg,
        ["rank", unit],
        [[f"{x:.0f}", f"{y:,.4g}"] for x, y in points],
    )


def worker_rows(workers: Iterable[WorkerFigures]) -> list[list[str]]:
    """For a table: what each rank did."""
    rows = []
    for worker in workers:
        mean = 1000 * worker.seconds / worker.steps if worker.steps else None
        rows.append(
            [
                f"rank {worker.rank}",
                worker.node,
                format_count(worker.steps),
                format_count(worker.samples),
                "-" if mean is None else f"{mean:.3g}",
                format_count(worker.bytes),
            ]
        )
    return rows
