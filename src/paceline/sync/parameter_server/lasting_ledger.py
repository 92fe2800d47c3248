"""A ledger in the node's memory that is whole whenever a worker is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.comm import World
from paceline.core.vectors import Vector
from paceline.rules import State
from paceline.sync.parameter_server.holdings import Held, Holdings
from paceline.sync.parameter_server.ledger import Ledger, LedgerReply, WorkerReport
from paceline.sync.parameter_server.spec import CentreSpec
from paceline.sync.saved import SavedCentre


class LastingLedger:
    """Two copies, of which one counts: a report is entered in the other, and then that counts."""

    def __init__(self, world: World, spec: CentreSpec, start: Vector) -> None:
        """All workers make it together; callers make sure that nobody else calls meanwhile."""
        width = Holdings.width(spec.most_held)
        shape = (world.size, width)
        size = start.size + world.size * width
        self._memory = world.node_memory(8 * (8 + 2 * size), locks=0)
        numbers = self._memory.bytes.view(np.float64)
        self._turn, self._copies = numbers[:1], numbers[8:].reshape(2, size)
        if world.rank == 0:
            self._copies[0, : start.size] = start
            held = spec.saved.held if spec.saved is not None else ()
            Holdings(self._copies[0, start.size :].reshape(shape)).fill(held)
        again = spec.again
        self._ledgers = [
            Ledger(copy[: start.size], world.size, spec.batches, again) for copy in self._copies
        ]
        self._holdings = [Holdings(copy[start.size :].reshape(shape)) for copy in self._copies]
        world.barrier()

    @property
    def ledger(self) -> Ledger:
        """The one that counts."""
        return self._ledgers[int(self._turn[0])]

    @property
    def holdings(self) -> Holdings:
        return self._holdings[int(self._turn[0])]

    def enter(self, worker: int, report: WorkerReport, spec: CentreSpec) -> LedgerReply:
        """Enter a report: as a whole, or not at all."""
        turn = 1 - int(self._turn[0])
        self._copies[turn] = self._copies[1 - turn]
        reply = self._ledgers[turn].enter(worker, report, spec.staleness_weight)
        gives = bool(report.push) or spec.rule is None
        self._holdings[turn].enter(worker, report, reply.scale, gives)
        self._holdings[turn].grant(worker, reply.first, reply.last)
        self._turn[0] = turn
        return reply

    def carry_over(
        self,
        centre: Vector,
        state: State,
        lost: Sequence[int],
        in_hand: Mapping[int, Sequence[int]],
    ) -> SavedCentre:
        """For the workers that are left: batches that the lost ones held are granted again, and
        what they had reported of those does not count."""
        counts, again = self.ledger.snapshot(), self.ledger.waiting()
        for rank in lost:
            held = self.holdings.of(rank)
            for name in ("samples", "loss", "without_loss"):
                counts[name] -= getattr(held, name)
            again += held.numbers
        kept = []
        for rank in sorted(in_hand):
            held, untrained = self.holdings.of(rank), set(in_hand[rank])
            again += in_hand[rank]
            trained = tuple(number for number in held.numbers if number not in untrained)
            kept.append(Held(*held[:4], trained))
        return SavedCentre(centre, state, counts, tuple(sorted(again)), tuple(kept))
