"""Telling a run that does not learn: its loss is far above where it began, or never leaves it."""

from __future__ import annotations

from itertools import pairwise
from math import hypot, sqrt
from statistics import median

STEPS = 5
"""A run begins with so many: a single batch may be far from the others, and soon it has learned."""
FAR_ABOVE = 3.0
"""A loss of so many times that of the first steps has diverged."""
NO_LOWER = 0.98
"""A loss above so much of that of the first steps has not fallen."""
CLEAR = 0.02
"""Losses of small batches scatter. The loss is called no lower where the standard error of the
first steps is below so much of their mean,"""
ERRORS = 4
"""or where it has risen by so many standard errors."""


class Divergence:
    """Compares the loss of each epoch with those of the run's first steps.

    >>> found = Divergence()
    >>> for _ in range(STEPS):
    ...     found.see(2.3)
    >>> found.judge(0.4), found.judge(2.31)
    (None, 'the loss is 2.31, no lower than in the first steps (2.3): nothing was learned')
    """

    def __init__(self) -> None:
        self._first: list[float] = []
        self.warning: str | None = None
        """What is wrong as of the last epoch, if anything is."""

    def see(self, loss: float | None) -> None:
        """Take the loss of a step."""
        if loss is not None and len(self._first) < STEPS:
            self._first.append(loss)

    def judge(self, loss: float | None) -> str | None:
        """What is wrong with an epoch of this loss."""
        self.warning = self._find(loss)
        return self.warning

    def _find(self, loss: float | None) -> str | None:
        if loss is None or len(self._first) < STEPS:
            return None
        first = median(self._first)  # the mean of steps that diverge is high itself
        if loss > FAR_ABOVE * first > 0:
            return f"the loss is {loss:.4g}, far above that of the first steps ({first:.4g})"
        first = sum(loss / STEPS for loss in self._first)
        error = _scatter(self._first) / sqrt(STEPS)
        bar = NO_LOWER * first if error < CLEAR * first else first + ERRORS * error
        if loss > bar > 0:
            found = f"the loss is {loss:.4g}, no lower than in the first steps ({first:.4g})"
            return f"{found}: nothing was learned"
        return None

    def snapshot(self) -> dict[str, list[float]]:
        """What a run that goes on must know."""
        return {"first": list(self._first)}

    def restore(self, saved: dict[str, list[float]]) -> None:
        """Go on from what `snapshot` gave."""
        self._first = list(saved["first"])


def _scatter(losses: list[float]) -> float:
    """The standard deviation of losses that also fall: taken from their successive differences.

    >>> _scatter([4.0, 3.0, 4.0]) == _scatter([1.0, 2.0, 1.0]) == sqrt(2) / 2
    True
    """
    differences = [after - before for before, after in pairwise(losses)]
    return hypot(*differences) / sqrt(2 * len(differences))  # squares of large ones overflow
