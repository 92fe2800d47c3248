"""Costs learned from what steps took.

Where samples have lengths, the time of a batch is fitted by  o + sum(a + b L + c L^2)  with
coefficients of 0 or more, from sums that add up over ranks. Elsewhere each sample has an estimate
of its own, corrected by its share of the error whenever a batch with it was timed (Kaczmarz'
method).
All of it is arithmetic: who measures, and how sums travel, is decided elsewhere.
"""

from __future__ import annotations

from itertools import combinations
from typing import Protocol

import numpy as np

from paceline.core.vectors import Vector

_FEATURES = 4
"""Of a batch: 1, its samples, the sum of their lengths, and of the squares."""
_OUTLIER = 8.0
"""A batch that took so many times what was expected did something else meanwhile."""


class CostModel(Protocol):
    """Learns what samples cost."""

    def note(self, indices: Vector, seconds: float) -> None:
        """A rank needed so many seconds for a batch of these samples."""

    def sums(self) -> Vector:
        """What was noted since the last `fit`, as numbers that add up over ranks."""

    def fit(self, total: Vector) -> Vector | None:
        """The costs by the sums of all ranks; None: too little is known."""


class LengthModel:
    """The cost of a sample as a polynomial of its length."""

    def __init__(self, lengths: Vector, padded: bool = False) -> None:
        """`padded`: each sample of a batch is as long as the longest."""
        self._lengths = lengths / (float(lengths.mean()) or 1.0)
        self._padded = padded
        self._known = np.zeros(_FEATURES * (_FEATURES + 1) + 1)
        self._fresh = np.zeros_like(self._known)
        self._usual: float | None = None

    def note(self, indices: Vector, seconds: float) -> None:
        own = self._lengths[indices]
        if self._padded:
            own[:] = own.max()
        row = np.array([1.0, len(own), own.sum(), np.dot(own, own)])
        expected = self._usual and self._usual * float(row[1] + row[2])
        if expected and seconds > _OUTLIER * expected:
            return
        # Long batches are timed less exactly in absolute terms: what counts is the relative error.
        row /= (weight := 1 + row[2])
        self._fresh += np.concatenate([np.outer(row, row).ravel(), row * (seconds / weight), [1.0]])

    def sums(self) -> Vector:
        return self._fresh.copy()

    def fit(self, total: Vector) -> Vector | None:
        self._known += total
        self._fresh[:] = 0
        count = self._known[-1]
        if count < 2 * _FEATURES:
            return None
        matrix = self._known[: _FEATURES**2].reshape(_FEATURES, _FEATURES)
        each = fit_nonnegative(matrix, self._known[_FEATURES**2 : -1])
        _, fixed, linear, square = each.tolist()
        costs: Vector = fixed + linear * self._lengths + square * self._lengths**2
        if not costs.any():
            return None
        self._usual = float(costs.mean()) / 2
        self._known *= 0.5  # what is newer counts more
        costs /= costs.mean()
        return costs


class SampleModel:
    """An estimate for each sample, without knowing anything of it."""

    def __init__(self, samples: int) -> None:
        self._costs = np.ones(samples)
        self._seen = np.zeros(samples)
        self._second: float | None = None
        """Seconds that a sample takes on average."""

    def note(self, indices: Vector, seconds: float) -> None:
        mean = seconds / max(1, len(indices))
        if self._second is None:
            self._second = mean
        if mean > _OUTLIER * self._second * float(self._costs[indices].max()):
            mean = _OUTLIER * self._second
        error = len(indices) * mean / self._second - float(self._costs[indices].sum())
        self._costs[indices] = np.maximum(self._costs[indices] + error / len(indices), 0.0)
        self._seen[indices] = 1.0

    def sums(self) -> Vector:
        # Each sample is with one rank in an epoch; averages are taken where it was with several.
        # Ranks have their own unit: seconds are what they have in common.
        unit = self._second or 0.0
        return np.concatenate([self._costs * self._seen * unit, self._seen])

    def fit(self, total: Vector) -> Vector | None:
        seconds, seen = np.split(total, 2)
        if not seconds.any():
            return None
        known = seen > 0
        found = np.zeros_like(seconds)
        found[known] = seconds[known] / seen[known]
        found[~known] = found[known].mean()
        self._second = float(found.mean())
        self._costs, self._seen = found / self._second, np.zeros_like(seen)
        return self._costs.copy()


def fit_nonnegative(matrix: Vector, right: Vector) -> Vector:
    """Least squares with coefficients of 0 or more, from the normal equations of a few unknowns.

    All subsets of unknowns are tried: there are fifteen of four.

    >>> fit_nonnegative(np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([4.0, -1.0])).round(6).tolist()
    [2.0, 0.0]
    """
    size = len(right)
    best, least = np.zeros(size), 0.0
    ridge = 1e-9 * float(np.trace(matrix)) * np.eye(size)
    for count in range(1, size + 1):
        for chosen in combinations(range(size), count):
            part = np.ix_(chosen, chosen)
            found = np.linalg.solve(matrix[part] + ridge[part], right[list(chosen)])
            if (found < 0).any():
                continue
            error = float(found @ matrix[part] @ found - 2 * found @ right[list(chosen)])
            if error < least - 1e-12 * abs(least):
                best, least = np.zeros(size), error
                best[list(chosen)] = found
    return best
