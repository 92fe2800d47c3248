"""The ledger of a run whose workers go at their own pace: a few numbers, kept in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from paceline.vectors import Vector

_SAMPLES, _LOSS, _STOP, _UPDATES, _DEALT, _COMMON = range(6)


class Report(NamedTuple):
    """What a worker tells: all of it since its last report."""

    samples: float = 0.0
    loss: float = 0.0
    """The sum over these samples."""
    stop: bool = False
    """It asks all to stop."""
    push: bool = False
    """It has something for the centre."""
    pull: bool = False
    """It asks for the centre."""
    wanted: int = 0
    """Batches that it would take."""
    left: bool = False
    """It trains no more."""


class News(NamedTuple):
    """What a worker learns in return."""

    samples: float = 0.0
    """Of all workers, since the start."""
    loss: float = 0.0
    """The sum over these samples."""
    stop: bool = False
    """Somebody asked to stop."""
    working: int = 0
    """Workers that still train."""
    first: int = 0
    """The batches it may take begin here ..."""
    last: int = 0
    """... and end before this."""
    staleness: int = 0
    """Updates of the centre by others since this worker saw it."""
    scale: float = 1.0
    """By which its push counts; 0 if it was refused."""


class Ledger:
    """Counts what all workers do, deals the batches, and knows who still works.

    The numbers lie in memory that is given: of the node, or of the rank that serves. Whoever calls
    sees to it that nobody else does meanwhile.
    """

    def __init__(self, numbers: Vector, workers: int, batches: int) -> None:
        """For so many workers, and so many batches in the whole run (0: none are dealt)."""
        self._common = numbers[:_COMMON]
        self._seen = numbers[_COMMON : _COMMON + workers]
        self._left = numbers[_COMMON + workers : _COMMON + 2 * workers]
        self._workers, self._batches = workers, batches

    @staticmethod
    def size(workers: int) -> int:
        """How many float64 numbers it needs."""
        return _COMMON + 2 * workers

    def enter(self, worker: int, report: Report, scale: Callable[[int], float]) -> News:
        """Take a report down; `scale` says by how much a push of some staleness counts."""
        common, seen = self._common, self._seen
        common[_SAMPLES] += report.samples
        common[_LOSS] += report.loss
        common[_STOP] += bool(report.stop)
        staleness = int(common[_UPDATES] - seen[worker])
        factor = scale(staleness) if report.push else 1.0
        if report.push and factor:
            common[_UPDATES] += 1
            seen[worker] += 1  # its own update does not make it stale
        if report.pull or not factor:
            seen[worker] = common[_UPDATES]
        if report.left:
            self._left[worker] = 1
        first, last = self._deal(int(report.wanted))
        working = self._workers - int(self._left.sum())
        samples, loss, stop = common[:3].tolist()
        return News(samples, loss, stop > 0, working, first, last, staleness, factor)

    def _deal(self, wanted: int) -> tuple[int, int]:
        """The next batches; ever fewer towards the end, so that all workers end together."""
        first = int(self._common[_DEALT])
        rest = 0 if self._common[_STOP] else self._batches - first
        given = min(wanted, rest, max(1, rest // (2 * self._workers)))
        self._common[_DEALT] += given
        return first, first + given
