"""The mean over workers, weighted by samples: what every synchronous rule is made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.core.vectors import Vector


def weigh(vector: Vector, weight: float, out: Vector) -> None:
    """Write `weight * vector` to `out`, which may be the vector itself; a weight of 1 is free."""
    if weight != 1.0:
        np.multiply(vector, weight, out=out)
    elif out is not vector:
        out[:] = vector


def add_up(vectors: Sequence[Vector], weights: Sequence[float], out: Vector) -> None:
    """Write the sum of `weight * vector` to `out`, added in their order; `out` is none of them.

    >>> out = np.empty(1)
    >>> add_up([np.array([4.0]), np.array([1.0])], [1.0, 0.5], out=out)
    >>> out
    array([4.5])
    """
    plain = len(vectors) > 1 and weights[0] == 1.0 and weights[1] == 1.0
    if plain:
        np.add(vectors[0], vectors[1], out=out)
    else:
        weigh(vectors[0], weights[0], out)
    for vector, weight in zip(vectors[1 + plain :], weights[1 + plain :], strict=True):
        out += vector if weight == 1.0 else vector * out.dtype.type(weight)


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
