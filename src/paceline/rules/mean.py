"""The mean over workers, weighted by samples: what every synchronous rule is made of."""

from __future__ import annotations

import numpy as np

from paceline.vectors import Vector


def weigh(vector: Vector, weight: float, out: Vector) -> None:
    """Write `weight * vector` to `out`, which may be the vector itself; a weight of 1 is free."""
    if weight != 1.0:
        np.multiply(vector, weight, out=out)
    elif out is not vector:
        out[:] = vector


def take_mean(total: Vector, weight: float, out: Vector) -> None:
    """Write `total / weight` to `out`, which may be the total itself; nobody's mean is the total.

    >>> total = np.array([3.0, 6.0])
    >>> take_mean(total, 1.5, out=total)
    >>> total
    array([2., 4.])
    """
    if weight not in (0.0, 1.0):
        np.multiply(total, 1.0 / weight, out=out)
    elif out is not total:
        out[:] = total
