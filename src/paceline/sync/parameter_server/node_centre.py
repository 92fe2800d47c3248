"""A centre in the memory of the node: every worker exchanges with it directly, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from paceline.comm import NodeMemory, World
from paceline.core.chunks import chunks, length
from paceline.core.vectors import ALIGNMENT_BYTES, Vector
from paceline.errors import WorldError
from paceline.rules import PushTerms, State
from paceline.sync.parameter_server.lasting_ledger import LastingLedger
from paceline.sync.parameter_server.ledger import Ledger, LedgerReply, WorkerReport
from paceline.sync.parameter_server.push_journal import PushJournal
from paceline.sync.parameter_server.spec import CentreSpec
from paceline.sync.parameter_server.worker_port import WorkerPort
from paceline.sync.saved import Keep, SavedCentre, join_states, pack

CHUNK_ELEMENTS = 64 * 1024
"""An exchange of one chunk stays in the cache and holds its lock for some ten microseconds."""

_LEDGER_LOCK = 0


class NodeCentre:
    """One vector for all ranks of a node, the optimizer's state beside it, and the ledger.

    A chunk has a lock of its own, and what one worker does to it another sees wholly or not at all;
    different workers may be in different chunks. Nothing is sent.
    """

    def __init__(self, world: World, spec: CentreSpec, weights: Vector) -> None:
        """All ranks make it together, with the same weights."""
        self._world, self._spec, self._worker = world, spec, world.rank
        self._pieces = list(chunks(slice(0, weights.size), CHUNK_ELEMENTS))
        states = [spec.init_state(weights[piece]) for piece in self._pieces]
        numbers = np.zeros(Ledger.size(world.size))
        if spec.saved is not None:
            weights = spec.saved.centre
            states = list(map(spec.saved.piece_of_state, self._pieces, states))
            Ledger.begin_at(numbers, spec.saved.ledger)
        arrays = [numbers, weights, *chain.from_iterable(state.values() for state in states)]
        self._memory = _reserve(world, arrays, 1 + len(self._pieces))
        lies = _place(self._memory.bytes, arrays, fill=world.rank == 0)
        self._ledger = Ledger(lies[0], world.size, spec.batches, spec.again)
        self._centre, rest = lies[1], iter(lies[2:])
        self._states: list[State] = [{name: next(rest) for name in state} for state in states]
        self._scratch = np.empty((2, min(CHUNK_ELEMENTS, max(1, weights.size))), weights.dtype)
        self._in_place = not world.elastic
        """Whether an exchange may be done in one go, as far as is known."""
        self.bytes_sent = 0
        self._keep: Keep | None = None
        self._lasting = LastingLedger(world, spec) if world.elastic else None
        self._journal: PushJournal | None = None
        if world.elastic:
            self._journal = PushJournal(world, self._centre, self._pieces, self._states)
        world.barrier()

    def report(self, report: WorkerReport) -> LedgerReply:
        """Report to the ledger, and get its totals."""
        if self._lasting is None:
            self._world.raise_if_failed()
        with self._memory.hold(_LEDGER_LOCK):
            if self._lasting is not None:
                return self._lasting.enter(self._worker, report)
            return self._ledger.enter(self._worker, report, self._spec.staleness_weight)

    def push_pull(self, report: WorkerReport, terms: PushTerms, port: WorkerPort) -> LedgerReply:
        """One exchange of this worker with the centre."""
        if self._journal is not None and self._lasting is not None and report.push:
            for piece in self._pieces:
                port.write_push(piece, terms, self._journal.pushes[self._worker][piece])
            number = self._lasting.now.holdings.pushes(self._worker)[0] + 1
            self._journal.begin(self._worker, number, terms)
        reply = self.report(report)
        terms = terms._replace(scale=reply.scale)
        pull = report.pull or not reply.scale
        first = self._worker * len(self._pieces) // self._world.size  # workers in different places
        for done, index in enumerate(self._from(first)):
            if self._journal is not None and report.push:
                self._exchange_lasting(self._journal, done, index, pull, terms, port)
            else:
                self._exchange_chunk(index, report.push, pull, terms, port)
        return reply

    def _from(self, first: int) -> list[int]:
        return [*range(first, len(self._pieces)), *range(first)]

    def _exchange_lasting(
        self,
        journal: PushJournal,
        done: int,
        index: int,
        pull: bool,
        terms: PushTerms,
        port: WorkerPort,
    ) -> None:
        """The same, with a push that somebody else can finish."""
        piece = self._pieces[index]
        sent, reply = self._scratch[:, : length(piece)]
        with self._memory.hold(1 + index):
            self._absorb(journal, self._worker, done, index, terms)
            sent[:] = self._absorbed[: sent.size]
            if pull and self._spec.replies_with_centre:
                reply[:] = self._centre[piece]
        if pull:
            port.accept_reply(piece, reply if self._spec.replies_with_centre else sent)

    def _absorb(
        self, journal: PushJournal, worker: int, done: int, index: int, terms: PushTerms
    ) -> None:
        """Let the centre's chunk move by a worker's push; what became of that stays in memory."""
        piece = self._pieces[index]
        self._absorbed = journal.pushes[worker][piece].copy()
        journal.keep(worker, done, index)
        if terms.scale and self._spec.rule is not None:
            self._spec.rule.absorb(self._absorbed, self._centre[piece], self._states[index], terms)
        journal.done(worker, done, index)

    def carry_over(self, left: World, unreported: int) -> SavedCentre:
        """One finishes the pushes of those that are lost; then all read the same memory."""
        lasting, journal = self._lasting, self._journal
        assert lasting is not None, "the world is elastic"
        assert journal is not None
        found = left.allgather_values((self._world.rank, unreported))
        here = {rank for rank, _ in found}
        lost = [rank for rank in range(self._world.size) if rank not in here]
        if left.rank == 0:
            for index in range(len(self._pieces)):
                journal.mend(index)
            for rank in lost:
                self._finish_push(lasting, journal, rank)
        left.barrier()
        state = join_states(self._states, list(map(length, self._pieces)))
        arrived = dict.fromkeys(lost, True)
        return lasting.now.carry_over(self._centre.copy(), state, arrived, found)

    def _finish_push(self, lasting: LastingLedger, journal: PushJournal, rank: int) -> None:
        pushes, scale = lasting.now.holdings.pushes(rank)
        found = journal.unfinished(rank, pushes)
        if found is not None:
            done, terms = found
            first = rank * len(self._pieces) // self._world.size
            for at, index in enumerate(self._from(first)[done:], done):
                self._absorb(journal, rank, at, index, terms._replace(scale=scale))

    def _exchange_chunk(
        self, index: int, push: bool, pull: bool, terms: PushTerms, port: WorkerPort
    ) -> None:
        piece, state = self._pieces[index], self._states[index]
        centre = self._centre[piece]
        sent, reply = self._scratch[:, : centre.size]
        if push and pull and terms.scale and self._in_place:
            with self._memory.hold(1 + index):
                self._in_place = port.exchange_in_place(piece, centre, terms, sent)
            if self._in_place:
                return
        if push:
            port.write_push(piece, terms, sent)
        with self._memory.hold(1 + index):
            if push and terms.scale and self._spec.rule is not None:
                self._spec.rule.absorb(sent, centre, state, terms)
            if pull and self._spec.replies_with_centre:
                reply[:] = centre
        if pull:
            port.accept_reply(piece, reply if self._spec.replies_with_centre else sent)

    def read_into(self, out: Vector) -> None:
        """Copy the centre as it is now, each chunk whole."""
        for index, piece in enumerate(self._pieces):
            with self._memory.hold(1 + index):
                out[piece] = self._centre[piece]

    def save(self, number: int) -> None:
        """Let one worker keep all of it; nobody else is there now."""
        if self._worker == 0 and self._keep is not None:
            sizes = list(map(length, self._pieces))
            state = join_states(self._states, sizes)
            ledger = self._ledger if self._lasting is None else self._lasting.now.ledger
            self._keep(number, pack(self._centre, state, ledger))

    def on_save(self, keep: Keep) -> None:
        """What `save` gives goes there."""
        self._keep = keep

    @property
    def residuals(self) -> State:
        """Nothing is rounded."""
        return {}

    def sign_off(self, quit: bool = False) -> None:
        """This worker will not ask again."""

    def abandon(self) -> None:
        """Nothing is served."""

    def close(self, out: Vector) -> None:
        """The last state of the centre, on every rank; all come here together."""
        self._world.barrier()
        self.read_into(out)
        if self._world.elastic:  # if ranks are lost before the run is over, it is needed again
            return
        self._memory.close()
        del self._ledger, self._centre, self._states  # the last views of the memory


def _reserve(world: World, arrays: Sequence[Vector], locks: int) -> NodeMemory:
    try:
        return world.node_memory(sum(map(_room, arrays)), locks=locks)
    except WorldError as error:
        servers = "exchange.servers=1 holds the centre in a process of its own"
        raise WorldError(f"{error}; {servers}") from None


def _room(array: Vector) -> int:
    """Bytes for an array that begins on a cache line."""
    return -(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _place(memory: Vector, arrays: list[Vector], fill: bool) -> list[Vector]:
    """Lay the arrays out in the memory, one after the other."""
    placed, at = [], 0
    for array in arrays:
        lies = memory[at : at + array.nbytes].view(array.dtype)
        if fill:
            lies[:] = array
        placed.append(lies)
        at += _room(array)
    return placed
