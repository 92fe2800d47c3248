"""The ledger of an asynchronous run: a few numbers, kept in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from paceline.core.vectors import Vector

_SAMPLES, _LOSS, _STOP, _UPDATES, _GRANTED, _AGAIN, _SAVES, _QUIT, _WITHOUT_LOSS, _COMMON = range(
    10
)


class WorkerReport(NamedTuple):
    """What a worker reports: everything since its last report."""

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
    save: bool = False
    """It asks all to save."""
    quit: bool = False
    """It asks all ranks to save and exit."""
    without_loss: float = 0.0
    """Samples without a loss: those of rejected batches."""
    batches: int = 0
    """That it has trained on."""


class LedgerReply(NamedTuple):
    """What a worker gets in return."""

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
    saves: int = 0
    """How often all were asked to save."""
    quit: bool = False
    """All exit after that."""
    scale: float = 1.0
    """By which its push counts; 0 if it was refused."""
    without_loss: float = 0.0
    """Samples without a loss, of all workers."""


class Ledger:
    """Counts what all workers do, grants batches, and knows who still trains.

    The numbers lie in memory of the node, or of the rank that serves. Callers make sure that nobody
    else calls at the same time.
    """

    def __init__(
        self, numbers: Vector, workers: int, batches: int, again: Sequence[int] = ()
    ) -> None:
        """For so many workers, and so many batches in the whole run (0: none are granted).

        Those in `again` come first: an interrupted run had granted them and not trained on them.
        """
        self._common, self._again = numbers[:_COMMON], again
        self._seen = numbers[_COMMON : _COMMON + workers]
        self._left = numbers[_COMMON + workers : _COMMON + 2 * workers]
        self._workers, self._batches = workers, batches

    @staticmethod
    def size(workers: int) -> int:
        """How many float64 numbers it needs."""
        return _COMMON + 2 * workers

    def snapshot(self) -> dict[str, float]:
        """What a resumed run needs; nobody trains meanwhile."""
        samples, loss, _, updates, granted = self._common[: _GRANTED + 1].tolist()
        without_loss = float(self._common[_WITHOUT_LOSS])
        counts = {"samples": samples, "loss": loss, "without_loss": without_loss}
        return counts | {"updates": updates, "granted": granted}

    def waiting(self) -> list[int]:
        """Batches that are to be granted again and have not been."""
        return list(self._again[int(self._common[_AGAIN]) :])

    @staticmethod
    def begin_at(numbers: Vector, saved: Mapping[str, float]) -> None:
        """Write into its memory where an interrupted run was."""
        places = {"samples": _SAMPLES, "loss": _LOSS, "without_loss": _WITHOUT_LOSS}
        places |= {"updates": _UPDATES, "granted": _GRANTED}
        for name, place in places.items():
            numbers[place] = saved[name]
        numbers[_COMMON : _COMMON + (numbers.size - _COMMON) // 2] = saved["updates"]

    def enter(
        self, worker: int, report: WorkerReport, scale: Callable[[int], float]
    ) -> LedgerReply:
        """Enter a report; `scale` says by how much a push of some staleness counts."""
        common, seen = self._common, self._seen
        common[_SAMPLES] += report.samples
        common[_LOSS] += report.loss
        common[_WITHOUT_LOSS] += report.without_loss
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
        first, last = self._grant(int(report.wanted))
        working = self._workers - int(self._left.sum())
        if working and (report.save or (report.quit and not common[_QUIT])):
            common[_SAVES] += 1  # after the last worker has left nobody would learn of it
            common[_QUIT] += report.quit
        samples, loss, stop = common[:3].tolist()
        saves, quit, without_loss = (
            int(common[_SAVES]),
            bool(common[_QUIT]),
            float(common[_WITHOUT_LOSS]),
        )
        counts = (working, first, last, staleness, saves)
        return LedgerReply(samples, loss, stop > 0, *counts, quit, factor, without_loss)

    def _grant(self, wanted: int) -> tuple[int, int]:
        """The next batches; ever fewer towards the end, so that all workers end together."""
        returned = int(self._common[_AGAIN])
        if wanted and returned < len(self._again) and not self._common[_STOP]:
            self._common[_AGAIN] += 1
            number = self._again[returned]
            return number, number + 1
        first = int(self._common[_GRANTED])
        rest = 0 if self._common[_STOP] else self._batches - first
        given = min(wanted, rest, max(1, rest // (2 * self._workers)))
        self._common[_GRANTED] += given
        return first, first + given
