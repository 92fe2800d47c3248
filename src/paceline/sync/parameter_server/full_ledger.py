"""The ledger of an elastic run: with what each worker holds, and copies that others keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.core.vectors import Vector
from paceline.rules import State
from paceline.sync.parameter_server.holdings import Held, Holdings
from paceline.sync.parameter_server.ledger import Ledger, LedgerReply, WorkerReport
from paceline.sync.parameter_server.spec import CentreSpec
from paceline.sync.saved import SavedCentre


class FullLedger:
    """Ledger and holdings in one array of numbers.

    A copy has only the part of it that is in use. Of two copies the one with more `reports` is the
    newer one.
    """

    def __init__(self, numbers: Vector, workers: int, spec: CentreSpec) -> None:
        self.numbers, self._spec, self._head = numbers, spec, Ledger.size(workers)
        self.ledger = Ledger(numbers[: self._head], workers, spec.batches, spec.again)
        self._rows = numbers[self._head :].reshape(workers, -1)
        self.holdings = Holdings(self._rows)

    @staticmethod
    def size(workers: int, spec: CentreSpec) -> int:
        """How many float64 numbers it needs."""
        return Ledger.size(workers) + workers * Holdings.width(spec.most_held)

    @classmethod
    def begin(cls, workers: int, spec: CentreSpec) -> FullLedger:
        """Where an earlier generation ended, if there was one; in memory of this rank."""
        made = cls(np.zeros(cls.size(workers, spec)), workers, spec)
        if spec.saved is not None:
            Ledger.begin_at(made.numbers[: made._head], spec.saved.ledger)
            made.holdings.fill(spec.saved.held)
        return made

    def enter(self, worker: int, report: WorkerReport) -> LedgerReply:
        reply = self.ledger.enter(worker, report, self._spec.staleness_weight)
        gives = bool(report.push) or self._spec.rule is None
        self.holdings.enter(worker, report, reply.scale, gives)
        self.holdings.grant(worker, reply.first, reply.last)
        return reply

    @property
    def room_of_copy(self) -> int:
        """Numbers of a copy, at most: the first says how many of a row are in it."""
        return 1 + self.numbers.size

    def write_copy(self, out: Vector) -> Vector:
        """Write a copy; the part of `out` that it takes."""
        width, workers = self.holdings.used, len(self._rows)
        head, end = 1 + self._head, 1 + self._head + workers * width
        out[0], out[1:head] = width, self.numbers[: self._head]
        out[head:end].reshape(workers, width)[:] = self._rows[:, :width]
        return out[:end]

    def read_copy(self, copy: Vector) -> None:
        """Be what a copy says."""
        self.numbers[: self._head] = copy[1 : 1 + self._head]
        rows = _rows_of(copy, len(self._rows))
        self._rows[:, : rows.shape[1]] = rows

    @staticmethod
    def size_of_copy(copy: Vector, workers: int) -> int:
        """How many numbers of a buffer it takes."""
        return 1 + Ledger.size(workers) + workers * int(copy[0])

    @staticmethod
    def reports_in(copy: Vector, workers: int) -> int:
        """How many reports a copy knows of."""
        return Holdings(_rows_of(copy, workers)).reports

    def carry_over(
        self,
        centre: Vector,
        state: State,
        lost: Mapping[int, bool],
        left: Sequence[tuple[int | None, int]],
        note: str = "",
    ) -> SavedCentre:
        """For the ranks that are `left`: which worker each is, if it is one, and how many batches
        it has trained on and not reported.

        The others that it was granted are granted again, and so are those of workers that are
        `lost`, of which what they had reported does not count. With each: whether its last push has
        arrived.
        """
        counts, again, kept = self.ledger.snapshot(), self.ledger.waiting(), []
        for worker, arrived in lost.items():
            again += take_out(counts, self.holdings.of(worker, arrived))
        for at, unreported in left:
            held = Held() if at is None else self.holdings.of(at)
            trained = held.batches + unreported
            again += held.numbers[trained:]
            kept.append(held._replace(numbers=held.numbers[:trained]))
        return SavedCentre(centre, state, counts, tuple(sorted(again)), tuple(kept), note)


def _rows_of(copy: Vector, workers: int) -> Vector:
    width, head = int(copy[0]), 1 + Ledger.size(workers)
    rows: Vector = copy[head : head + workers * width].reshape(workers, width)
    return rows


def take_out(counts: dict[str, float], held: Held) -> tuple[int, ...]:
    """Let what a worker holds not count; the batches to be granted again."""
    for name in ("samples", "loss", "without_loss"):
        counts[name] -= getattr(held, name)
    return held.numbers


def for_workers(saved: SavedCentre, workers: Sequence[int]) -> SavedCentre:
    """What those ranks begin with, each worker in its place: of ranks that trained and now serve
    the rest is done again."""
    if not saved.held:
        return saved
    counts, again = dict(saved.ledger), list(saved.again)
    for rank, held in enumerate(saved.held):
        if rank not in workers:
            again += take_out(counts, held)
    kept = [saved.held[rank] if rank < len(saved.held) else Held() for rank in workers]
    return SavedCentre(saved.centre, saved.state, counts, tuple(sorted(again)), tuple(kept))
