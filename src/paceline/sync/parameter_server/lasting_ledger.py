"""A ledger in the node's memory that is whole whenever a worker is lost."""

from __future__ import annotations

import numpy as np

from paceline.comm import World
from paceline.sync.parameter_server.full_ledger import FullLedger
from paceline.sync.parameter_server.ledger import LedgerReply, WorkerReport
from paceline.sync.parameter_server.spec import CentreSpec


class LastingLedger:
    """Two copies, of which one counts: a report is entered in the other, and then that counts."""

    def __init__(self, world: World, spec: CentreSpec) -> None:
        """All workers make it together; callers make sure that nobody else calls meanwhile."""
        start = FullLedger.begin(world.size, spec).numbers
        self._memory = world.node_memory(8 * (8 + 2 * start.size), locks=0)
        numbers = self._memory.bytes.view(np.float64)
        self._turn, self._copies = numbers[:1], numbers[8:].reshape(2, start.size)
        if world.rank == 0:
            self._copies[0] = start
        self._ledgers = [FullLedger(copy, world.size, spec) for copy in self._copies]
        world.barrier()

    @property
    def now(self) -> FullLedger:
        """The one that counts."""
        return self._ledgers[int(self._turn[0])]

    def enter(self, worker: int, report: WorkerReport) -> LedgerReply:
        """Enter a report: as a whole, or not at all."""
        turn = 1 - int(self._turn[0])
        self._copies[turn] = self._copies[1 - turn]
        reply = self._ledgers[turn].enter(worker, report)
        self._turn[0] = turn
        return reply
