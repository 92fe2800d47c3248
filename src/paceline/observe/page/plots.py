"""Plots as SVG: curves and stacked bars, with names beside them and no legend to look up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from paceline.observe.page.axis import Axis, make_axis, make_tight_axis, write_tick
from paceline.observe.page.style import COLOURS, PARTS

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 460, 280
_LEFT, _TOP, _BOTTOM = 50, 10, 44
_DASHES = ("", "7 4", "2 4", "10 4 2 4")
_FEW = 40
"""Points up to which each has a marker."""
_CHARACTER = 7.1
"""The width of a character of a name, about."""
_LINE = 15.0


@dataclass(frozen=True)
class Curve:
    """A named series of points."""

    name: str
    points: Points
    style: int = 0


@dataclass(frozen=True)
class Plot:
    """A drawing, and the table behind it."""

    title: str
    unit: str
    svg: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    of_parts: bool = False
    """Its colours are those of compute, wait, communication and data."""


def draw_curves(
    title: str, unit: str, x_name: str, curves: Sequence[Curve], zero: bool = False
) -> str:
    """Curves over a common axis, each with its name at its end."""
    curves = [curve for curve in curves if curve.points]
    names = len(curves) > 1
    longest = max((len(curve.name) for curve in curves), default=0)
    right = min(150.0, 14 + longest * _CHARACTER) if names else 14.0
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    x_axis = make_tight_axis(xs, _LEFT, WIDTH - right, 5)
    y_axis = make_axis(ys, HEIGHT - _BOTTOM, _TOP, 4, zero)
    parts = [*_draw_grid(x_axis, y_axis, x_name)]
    for curve in curves:
        parts.append(_draw_curve(curve, x_axis, y_axis))
    if names:
        parts += _name_ends(curves, x_axis, y_axis)
    return _frame(title, _describe(unit, x_name, curves), WIDTH, HEIGHT, parts)


def draw_parts(title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """A bar for each row, divided among compute, wait, communication and data by shares."""
    height, gap = (22.0, 8.0) if len(rows) <= 16 else (12.0, 4.0)
    longest = max((len(name) for name, _ in rows), default=0)
    left = min(180.0, 14 + longest * _CHARACTER)
    bottom = len(rows) * (height + gap)
    axis = Axis(0.0, 1.0, left, WIDTH - 16, (0.0, 0.25, 0.5, 0.75, 1.0))
    parts = []
    for tick in axis.ticks:
        x = axis.place(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{bottom:.1f}"/>')
        parts.append(_text(x, bottom + 18, f"{100 * tick:.0f} %", "middle"))
    for number, (name, split) in enumerate(rows):
        top = number * (height + gap)
        middle = top + height / 2 + 4.5
        parts.append(_text(left - 10, middle, name, "end", "label"))
        parts += _draw_bar(split, axis, top, height)
    names = [
        f"{name}: " + ", ".join(f"{k} {100 * v:.0f} %" for k, v in s.items()) for name, s in rows
    ]
    return _frame(title, "; ".join(names[:32]), WIDTH, bottom + 28, parts)


def draw_counts(title: str, x_name: str, counts: Mapping[int, int]) -> str:
    """A column for each value; those that are rare and large share the last."""
    most = 24
    values = {value: count for value, count in sorted(counts.items()) if value < most}
    rest = sum(count for value, count in counts.items() if value >= most)
    names = [str(value) for value in range(max(values, default=0) + 1)]
    heights = [values.get(int(name), 0) for name in names]
    if rest:
        names, heights = [*names, f"{most}+"], [*heights, rest]
    total = sum(heights) or 1
    y_axis = make_axis([100 * h / total for h in heights], HEIGHT - _BOTTOM, _TOP, 4, zero=True)
    width = (WIDTH - _LEFT - 14) / max(4, len(names))
    x_axis = Axis(0.0, 1.0, _LEFT, WIDTH - 14, ())
    parts = [*_draw_grid(x_axis, y_axis, x_name)]
    bottom = y_axis.place(0.0)
    for number, (name, count) in enumerate(zip(names, heights, strict=True)):
        x, top = _LEFT + number * width, y_axis.place(100 * count / total)
        parts.append(
            f'<rect class="f0" x="{x + width * 0.12:.1f}" y="{top:.1f}" width="{width * 0.76:.1f}" '
            f'height="{bottom - top:.1f}" rx="1.5"/>'
        )
        if len(names) <= 12 or number % 4 == 0:
            parts.append(_text(x + width / 2, bottom + 18, name, "middle"))
    told = ", ".join(f"{name}: {h}" for name, h in zip(names, heights, strict=True))
    return _frame(title, told, WIDTH, HEIGHT, parts)


def _draw_grid(x_axis: Axis, y_axis: Axis, x_name: str) -> list[str]:
    left, right, bottom = x_axis.start, x_axis.stop, y_axis.start
    parts = []
    for tick, text in _ticks(y_axis):
        y = y_axis.place(tick)
        parts.append(
            f'<line class="grid" x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(left - 8, y + 4.5, text, "end"))
    parts.append(
        f'<line class="axis" x1="{left:.1f}" y1="{bottom:.1f}" x2="{right:.1f}" y2="{bottom:.1f}"/>'
    )
    for tick, text in _ticks(x_axis):
        parts.append(_text(x_axis.place(tick), bottom + 18, text, "middle"))
    parts.append(_text((left + right) / 2, bottom + 37, x_name, "middle"))
    return parts


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    if len(axis.ticks) < 2:
        return []
    step = axis.ticks[1] - axis.ticks[0]
    return [(tick, write_tick(tick, step)) for tick in axis.ticks]


def _draw_curve(curve: Curve, x_axis: Axis, y_axis: Axis) -> str:
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in curve.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    style, dash = curve.style % len(COLOURS), _DASHES[curve.style // 2 % len(_DASHES)]
    thin = " thin" if len(places) > 200 else ""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    drawn = f'<path class="curve{thin} s{style}"{dashes} d="{path}"/>'
    if len(places) <= _FEW:
        points = zip(places, curve.points, strict=True)
        drawn += "".join(
            f'<circle class="f{style}" cx="{x:.1f}" cy="{y:.1f}" r="{3 if len(places) > 1 else 4}">'
            f"<title>{escape(curve.name)} {at:g}: {value:.5g}</title></circle>"
            for (x, y), (at, value) in points
        )
    return drawn


def _name_ends(curves: Sequence[Curve], x_axis: Axis, y_axis: Axis) -> list[str]:
    """Names beside the last points, moved apart where they would overlap."""
    ends = sorted((y_axis.place(c.points[-1][1]), n) for n, c in enumerate(curves))
    places = [y for y, _ in ends]
    for above, below in pairwise(range(len(places))):
        places[below] = max(places[below], places[above] + _LINE)
    overhang = max(0.0, places[-1] - y_axis.start) if places else 0.0
    for at in reversed(range(len(places))):
        limit = places[at + 1] - _LINE if at + 1 < len(places) else places[at] - overhang
        places[at] = min(places[at], limit) if overhang else places[at]
    parts = []
    for place, (_, number) in zip(places, ends, strict=True):
        curve = curves[number]
        style = f"name t{curve.style % len(COLOURS)}"
        parts.append(_text(x_axis.stop + 9, place + 4.5, curve.name[:19], "start", style))
    return parts


def _draw_bar(split: Mapping[str, float], axis: Axis, top: float, height: float) -> list[str]:
    parts, begin = [], 0.0
    for name, colour in PARTS.items():
        share = split.get(name, 0.0)
        x, end = axis.place(begin), axis.place(begin + share)
        begin += share
        if end - x < 0.3:
            continue
        parts.append(
            f'<rect class="f{colour}" x="{x:.1f}" y="{top:.1f}" height="{height:.1f}" '
            f'width="{max(0.3, end - x - 1):.1f}"><title>{name} {100 * share:.1f} %</title></rect>'
        )
        if end - x > 34 and height > 16:
            parts.append(
                _text(
                    (x + end) / 2, top + height / 2 + 4, f"{100 * share:.0f} %", "middle", "inbar"
                )
            )
    return parts


def _describe(unit: str, x_name: str, curves: Sequence[Curve]) -> str:
    """For those who hear the page: where each curve begins, ends, and its extremes."""
    told = []
    for curve in curves:
        values = [y for _, y in curve.points]
        told.append(
            f"{curve.name}: {len(values)} points, first {values[0]:.4g}, last {values[-1]:.4g}, "
            f"lowest {min(values):.4g}, highest {max(values):.4g}"
        )
    return f"{unit or 'values'} over {x_name}. " + "; ".join(told)


def _frame(title: str, told: str, width: float, height: float, parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {width:.0f} {height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">'
        f"<title>{escape(title)}</title><desc>{escape(told)}</desc>{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
