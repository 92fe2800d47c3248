"""Means along a growing axis, in a bounded number of bins: a million points become some hundred."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_BINS = 800


@dataclass
class Bin:
    """What fell into a bin: how much it weighs, and the weighted sum."""

    weight: float = 0.0
    total: float = 0.0


@dataclass
class Series:
    """Bins of equal width; the width doubles when there are too many.

    >>> series = Series(width=1.0)
    >>> for x in range(3):
    ...     series.add(x, 10.0 * x)
    >>> list(series.means())
    [(0.5, 0.0), (1.5, 10.0), (2.5, 20.0)]
    """

    width: float = 1.0
    whole: bool = False
    """Whether x counts something: then the middle of a bin of width 1 is its number."""
    bins: dict[int, Bin] = field(default_factory=dict)

    def add(self, x: float, value: float, weight: float = 1.0) -> None:
        """Points may come in any order."""
        number = int(x / self.width)
        found = self.bins.get(number)
        if found is None:
            found = self.bins[number] = Bin()
            if len(self.bins) > MOST_BINS:
                self._widen()
                found = self.bins[int(x / self.width)]
        found.weight += weight
        found.total += weight * value

    def means(self) -> Iterator[tuple[float, float]]:
        """The middle of each bin and its mean, in order."""
        for number in sorted(self.bins):
            found = self.bins[number]
            if found.weight > 0:
                yield (number + 0.5) * self.width - 0.5 * self.whole, found.total / found.weight

    def rates(self) -> Iterator[tuple[float, float]]:
        """The middle of each bin and the sum per unit of the axis. The first and the last bin are
        not full, and are left out where there are others."""
        numbers = sorted(self.bins)
        for number in numbers[1:-1] if len(numbers) > 3 else numbers:
            yield (number + 0.5) * self.width, self.bins[number].total / self.width

    def _widen(self) -> None:
        self.width *= 2
        before, self.bins = self.bins, {}
        for number, found in before.items():
            wide = self.bins.setdefault(number // 2, Bin())
            wide.weight += found.weight
            wide.total += found.total
