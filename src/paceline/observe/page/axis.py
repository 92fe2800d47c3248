"""Axes of a plot: where the ticks are, and what they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """From values to places between `start` and `stop`, in units of the drawing."""

    low: float
    high: float
    start: float
    stop: float
    ticks: Sequence[float]

    def place(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)


def make_axis(
    values: Sequence[float], start: float, stop: float, ticks: int, zero: bool = False
) -> Axis:
    """An axis with round ticks that has room for all values, and for 0 if it is to."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low = min(low, 0.0) if zero else low
    if high - low < 1e-9 * max(abs(high), abs(low), 1e-300):
        margin = abs(high) / 20 or 1.0
        low, high = (low if zero and low == 0 else low - margin), high + margin
    step = round_step((high - low) / ticks)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    count = round((high - low) / step)
    return Axis(low, high, start, stop, [low + step * number for number in range(count + 1)])


def make_tight_axis(values: Sequence[float], start: float, stop: float, ticks: int) -> Axis:
    """An axis from the lowest to the highest value, with round ticks; whole ones for counts."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high <= low:
        low, high = low - 1, high + 1
    step = round_step((high - low) / ticks)
    if all(value == int(value) for value in values):
        step = max(1.0, float(math.ceil(step)))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return Axis(low, high, start, stop, [step * number for number in range(first, last + 1)])


def round_step(rough: float) -> float:
    """The next larger of 1, 2, 2.5, 5 times a power of ten.

    >>> round_step(0.013), round_step(37.0)
    (0.02, 50.0)
    """
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * times for times in (1, 2, 2.5, 5, 10) if power * times >= rough * 0.999)


def write_tick(value: float, step: float) -> str:
    """A number with as many digits as its axis needs.

    >>> write_tick(0.30000000000000004, 0.1), write_tick(20000, 5000), write_tick(2.5e6, 5e5)
    ('0.3', '20k', '2.5M')
    """
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if max(abs(value), step) >= unit * (10 if letter == "k" else 1) and abs(value) >= unit:
            return f"{write_tick(value / unit, step / unit)}{letter}"
    if abs(value) < step / 1000:
        return "0"
    if step < 1e-4:
        return f"{value:.0e}".replace("e-0", "e-")
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if round(step * 10**digits) / 10**digits - step > 1e-12 or (step * 10**digits) % 1 > 1e-6:
        digits += 1
    return f"{value:.{digits}f}"
