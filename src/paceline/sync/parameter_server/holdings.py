"""Batches that workers have in hand, or have trained on and not yet given to the centre.

If a worker is lost, they are granted again, and what it had reported of them does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.core.vectors import Vector
from paceline.errors import TrainingError
from paceline.sync.parameter_server.ledger import WorkerReport

_COUNTS = 4
_BATCHES = _COUNTS - 1
_OWN, _PUSHED = slice(0, _COUNTS), slice(_COUNTS, 2 * _COUNTS)
"""Samples, loss, samples without loss and batches: not yet given, and given with the last push."""
_REPORTS, _PUSHES, _SCALE, _RANGES, _FIELDS = range(2 * _COUNTS, 2 * _COUNTS + 5)


class Held(NamedTuple):
    """What one worker holds."""

    samples: float = 0.0
    """Reported, of batches that are not given to the centre."""
    loss: float = 0.0
    without_loss: float = 0.0
    batches: int = 0
    """Trained on and reported, of the numbers."""
    numbers: tuple[int, ...] = ()
    """In the order in which they were granted."""


class Holdings:
    """A row of numbers for each worker; whoever holds the ledger writes them.

    Batches behind a push are kept until the worker reports again: only then it is certain that the
    push arrived.
    """

    def __init__(self, rows: Vector) -> None:
        self._rows = rows

    @staticmethod
    def width(most: int) -> int:
        """The numbers of a row for so many grants."""
        return _FIELDS + 2 * most

    @property
    def reports(self) -> int:
        """How many of all workers were entered."""
        return int(self._rows[:, _REPORTS].sum())

    @property
    def used(self) -> int:
        """The numbers of a row that are in use, of the longest."""
        return _FIELDS + 2 * int(self._rows[:, _RANGES].max(initial=0))

    def fill(self, held: Sequence[Held]) -> None:
        """Begin with what workers hold."""
        for row, its in zip(self._rows, held, strict=False):
            row[_OWN] = its[:_COUNTS]
            for number in its.numbers:
                self._append(row, number, number + 1)

    def enter(self, worker: int, report: WorkerReport, scale: float, gives: bool) -> None:
        """A worker reports; if it `gives`, all that it has trained on goes to the centre."""
        row = self._rows[worker]
        self._drop(row, int(row[_PUSHED][_BATCHES]))
        row[_PUSHED] = 0.0
        row[_OWN] += report.samples, report.loss, report.without_loss, report.batches
        row[_REPORTS] += 1
        if gives:
            row[_PUSHED] = row[_OWN]
            row[_OWN] = 0.0
            row[_PUSHES] += 1
            row[_SCALE] = scale

    def grant(self, worker: int, first: int, last: int) -> None:
        if last > first:
            self._append(self._rows[worker], first, last)

    def reports_of(self, worker: int) -> int:
        return int(self._rows[worker, _REPORTS])

    def pushes(self, worker: int) -> tuple[int, float]:
        """How often it has given, and by how much the last push counts."""
        return int(self._rows[worker, _PUSHES]), float(self._rows[worker, _SCALE])

    def of(self, worker: int, arrived: bool = True) -> Held:
        """What it holds, if its last push has `arrived`, or else with that."""
        row = self._rows[worker]
        pairs = row[_FIELDS : _FIELDS + 2 * int(row[_RANGES])].reshape(-1, 2).tolist()
        numbers = tuple(n for first, last in pairs for n in range(int(first), int(last)))
        if arrived:
            counts, numbers = row[_OWN], numbers[int(row[_PUSHED][_BATCHES]) :]
        else:
            counts = row[_OWN] + row[_PUSHED]
        samples, loss, without_loss, batches = counts.tolist()
        return Held(samples, loss, without_loss, int(batches), numbers)

    def _append(self, row: Vector, first: int, last: int) -> None:
        count = int(row[_RANGES])
        at = _FIELDS + 2 * count
        if count and row[at - 1] == first:
            row[at - 1] = last
            return
        if at + 2 > row.size:
            raise TrainingError(
                "a worker has more batches that are not in the centre than its first push had; an "
                "elastic run needs a rule that pushes at regular intervals: omit --elastic"
            )
        row[at : at + 2] = first, last
        row[_RANGES] = count + 1

    def _drop(self, row: Vector, batches: int) -> None:
        """Forget so many, the oldest first."""
        count, at = int(row[_RANGES]), _FIELDS
        while batches and count:
            taken = min(batches, int(row[at + 1] - row[at]))
            row[at] += taken
            batches -= taken
            if row[at] == row[at + 1]:
                at, count = at + 2, count - 1
        rest = row[at : at + 2 * count].copy()
        row[_FIELDS : _FIELDS + rest.size] = rest
        row[_RANGES] = count
