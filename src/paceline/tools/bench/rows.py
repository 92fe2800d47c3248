"""The results of a benchmark: rows, as a table, as JSON and as a plot."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import ConfigError
from paceline.observe import write_atomically
from paceline.observe.text_table import render_text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOT_SUFFIXES = (".svg", ".png", ".pdf")


@dataclass(frozen=True)
class Row:
    """One figure of ours and those of its peers, measured in the same run."""

    bench: str
    case: str
    unit: str
    """Of all figures of the row; one that ends in "/s" is a rate, of which more is better."""
    ours: float
    peers: dict[str, float]
    notes: Mapping[str, object] = field(default_factory=dict)

    def advantage(self, peer: str) -> float | None:
        """How many times better ours is than the peer: more than 1 if it is better.

        >>> Row("allreduce", "4 KB", "us", 2.0, {"gloo": 6.0}).advantage("gloo")
        3.0
        >>> Row("link", "bsp", "samples/s", 2.0, {"ddp-gloo": 1.0}).advantage("ddp-gloo")
        2.0
        """
        theirs = self.peers.get(peer)
        if not theirs or not self.ours:
            return None
        return self.ours / theirs if self.unit.endswith("/s") else theirs / self.ours


def render_table(rows: Sequence[Row]) -> str:
    """A line per row; a column for each peer and note that occurs, "-" where a row has none."""
    peers = _names(row.peers for row in rows)
    notes = _names(row.notes for row in rows)
    ratios = [part for peer in peers for part in (peer, f"vs {peer}")]
    lines = [["case", "unit", "ours", *ratios, *notes]]
    lines += [list(_cells(row, peers, notes)) for row in rows]
    return render_text_table(lines, left=(0, 1))  # case and unit are words


def write_rows(rows: Sequence[Row], path: str | Path) -> None:
    """Write a JSON list of the rows."""
    write_atomically(Path(path), json.dumps([_plain(row) for row in rows], indent=1) + "\n")


def check_plot(path: str | Path) -> None:
    """Refuse a plot that cannot be drawn before the measurement, not after it."""
    if Path(path).suffix not in PLOT_SUFFIXES:
        raise ConfigError(f"--plot {path} must end in one of: {', '.join(PLOT_SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "a plot needs matplotlib, which is not installed; run: pip install 'paceline[plots]'"
        )


def plot_rows(rows: Sequence[Row], path: str | Path) -> None:
    """Draw a panel per unit: a line per case, a mark for ours and for each peer, on a log scale."""
    check_plot(path)
    importlib.import_module("matplotlib").use("agg")  # without a window
    pyplot = importlib.import_module("matplotlib.pyplot")
    panels = {unit: [row for row in rows if row.unit == unit] for unit in _units(rows)}
    figure, axes = pyplot.subplots(
        len(panels), 1, squeeze=False, figsize=(8, 1.2 * len(panels) + 0.3 * len(rows))
    )
    for panel, (unit, members) in zip(axes[:, 0], panels.items(), strict=True):
        _draw_panel(panel, unit, members)
    figure.suptitle(f"paceline bench {rows[0].bench}")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _draw_panel(panel: Axes, unit: str, rows: Sequence[Row]) -> None:
    cases = list(range(len(rows)))
    panel.scatter([row.ours for row in rows], cases, label="ours", marker="D", zorder=3)
    for peer in _names(row.peers for row in rows):
        known = [(row.peers[peer], at) for at, row in enumerate(rows) if peer in row.peers]
        panel.scatter([value for value, _ in known], [at for _, at in known], label=peer)
    panel.set_yticks(cases, [row.case for row in rows])
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xlabel(f"{unit} ({'more' if unit.endswith('/s') else 'less'} is better)")
    panel.grid(axis="both", alpha=0.3)
    panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _names(groups: Iterable[Iterable[str]]) -> list[str]:
    """Every name that occurs, in the order of first occurrence."""
    return list(dict.fromkeys(name for group in groups for name in group))


def _units(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.unit for row in rows))


def _plain(row: Row) -> dict[str, object]:
    plain: dict[str, object] = {
        "bench": row.bench,
        "case": row.case,
        "unit": row.unit,
        "ours": row.ours,
        "peers": dict(row.peers),
    }
    return plain | ({"notes": dict(row.notes)} if row.notes else {})


def _cells(row: Row, peers: Sequence[str], notes: Sequence[str]) -> Iterator[str]:
    yield from (row.case, row.unit, _figure(row.ours))
    for peer in peers:
        yield _figure(row.peers.get(peer))
        yield _ratio(row.advantage(peer))
    for note in notes:
        yield _figure(row.notes.get(note))


def _figure(value: object) -> str:
    """A number with three or more significant digits, anything else as it is.

    >>> [_figure(v) for v in (1234.5, 56.78, 0.01234, None, "bsp")]
    ['1234', '56.8', '0.0123', '-', 'bsp']
    """
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    """
    >>> [_ratio(v) for v in (0.5, 12.34, 188.7, None)]
    ['0.50x', '12.3x', '189x', '-']
    """
    if value is None:
        return "-"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}x"
