"""Plots of what was learned: losses and other figures of the epochs, over three axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from paceline.observe.history import EpochRecord
from paceline.observe.numbers import format_loss
from paceline.observe.page.figures import RunFigures
from paceline.observe.page.plots import Curve, Plot, draw_curves

Read = Callable[[EpochRecord], float | None]
AXES = ("epochs", "samples", "time")


def plot_epochs(runs: Sequence[RunFigures], axis: str) -> list[Plot]:
    """What the histories have, over one axis."""
    alone = len(runs) == 1
    losses: dict[str, Read] = {
        "training": lambda record: record.train_loss,
        "validation": lambda record: record.val_loss,
    }
    plots = []
    if alone:
        plots.append(_plot(runs, axis, "Loss", "", losses))
    else:
        plots += [
            _plot(runs, axis, f"{n.capitalize()} loss", "", {n: r}) for n, r in losses.items()
        ]
    accuracy: dict[str, Read] = {"validation": _accuracy}
    plots.append(_plot(runs, axis, "Validation accuracy", "%", accuracy))
    metrics = sorted({name for run in runs for record in run.history for name in record.metrics})
    for name in metrics:
        plots.append(_plot(runs, axis, name.replace("_", " "), "", {name: _metric(name)}))
    rates: dict[str, Read] = {"rate": lambda record: record.learning_rate}
    if len({r.learning_rate for run in runs for r in run.history}) > 1:
        plots.append(_plot(runs, axis, "Learning rate", "", rates))
    return [plot for plot in plots if plot.rows]


def place_epochs(run: RunFigures, axis: str) -> tuple[list[float], str]:
    """Where the epochs of a run lie on an axis, and the name of that axis."""
    if axis == "samples":
        return list(accumulate(float(record.samples) for record in run.history)), "samples"
    if axis == "time":
        seconds = list(accumulate(record.seconds for record in run.history))
        return seconds, "seconds of training"
    return [float(record.epoch) for record in run.history], "epoch"


def _metric(name: str) -> Read:
    return lambda record: record.metrics.get(name)


def _accuracy(record: EpochRecord) -> float | None:
    return None if record.val_accuracy is None else 100 * record.val_accuracy


def _plot(
    runs: Sequence[RunFigures], axis: str, title: str, unit: str, reads: dict[str, Read]
) -> Plot:
    curves: list[Curve] = []
    x_name = "epoch"
    for number, run in enumerate(runs):
        places, x_name = _places_of_all(runs, run, axis)
        for at, (name, read) in enumerate(reads.items()):
            found = ((x, read(record)) for x, record in zip(places, run.history, strict=True))
            points = [(x, y) for x, y in found if y is not None and math.isfinite(y)]
            label = run.label if len(runs) > 1 else name
            curves.append(Curve(label, points, number if len(runs) > 1 else at))
    curves = [curve for curve in curves if curve.points]
    svg = draw_curves(title, unit or title.lower(), x_name, curves) if curves else ""
    return Plot(title, unit, svg, *_table(x_name, curves))


def _places_of_all(
    runs: Sequence[RunFigures], run: RunFigures, axis: str
) -> tuple[list[float], str]:
    """The same; long times in minutes or hours, the same for all runs."""
    places, name = place_epochs(run, axis)
    if axis == "time":
        longest = max((place_epochs(other, axis)[0] or [0.0])[-1] for other in runs)
        for seconds, unit in ((3600.0, "hours"), (60.0, "minutes")):
            if longest >= 3 * seconds:
                return [place / seconds for place in places], f"{unit} of training"
    return places, name


def _table(x_name: str, curves: Sequence[Curve]) -> tuple[list[str], list[list[str]]]:
    """A row for each place, thinned if there are many."""
    columns = [dict(curve.points) for curve in curves]
    places = sorted({x for column in columns for x in column})
    places = places[:: max(1, len(places) // 60)]
    rows = [[f"{x:,.6g}", *(format_loss(column.get(x)) for column in columns)] for x in places]
    return [x_name, *(curve.name for curve in curves)], rows
