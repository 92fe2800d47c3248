"""A centre that was on several ranks, put together by those that are left.

Servers that are left have their pieces. A piece whose server is lost is restored from the last
vectors that it sent to a worker: those with the most updates. A worker's exchange that was under
way is finished: its report is entered and its push absorbed, where that was not done; what it would
have got it gets with the next one. Of a worker that is lost a push counts if a piece has seen it.
Every rank does the same sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.comm import World
from paceline.core.chunks import length
from paceline.core.vectors import Vector
from paceline.errors import TrainingError
from paceline.rules import PushTerms, State
from paceline.sync.parameter_server.full_ledger import FullLedger
from paceline.sync.parameter_server.ledger import WorkerReport
from paceline.sync.parameter_server.packets import READ
from paceline.sync.saved import SavedCentre, join_states

if TYPE_CHECKING:
    from paceline.sync.parameter_server.remote_centre import RemoteCentre

Counts = Sequence[float]
"""How many pushes of each worker a piece of the centre has seen."""


@dataclass(frozen=True)
class Standing:
    """What a rank that is left has, as all ranks get to know it."""

    rank: int
    """In the world that has ended."""
    unreported: int
    """Batches that it has trained on and not reported."""
    reports: int
    """How many it has begun to send."""
    entries: int
    """Reports that its copy of the ledger knows of; -1 without one."""
    serves: Counts | None
    """The pushes in the piece that it serves, if it does."""
    seen: Sequence[Counts] | None
    """The pushes in each piece, as it last got them."""
    report: Sequence[float] | None
    """That of an exchange which is under way."""
    terms: Sequence[float]
    number: int
    """Of its push in that exchange, counted from 1; 0 if it is none."""


def recover_centre(link: RemoteCentre, left: World, unreported: int) -> SavedCentre:
    """All ranks that are left call it, each with its link to the centre."""
    mine = _look(link, unreported)
    found = [Standing(*fields) for fields in left.allgather_values(tuple(vars(mine).values()))]
    return _Recovery(link, left, found).recover()


def _look(link: RemoteCentre, unreported: int) -> Standing:
    copy, talk, server = link.copy_of_ledger(), link.under_way, link.server
    return Standing(
        link.world.rank,
        unreported,
        link.reports,
        -1 if copy is None else FullLedger.reports_in(copy, len(link.roles.workers)),
        None if server is None else server.pushed.tolist(),
        None if link.seen is None else [reply.more().tolist() for reply in link.seen.replies],
        None if talk is None else list(map(float, talk.report)),
        () if talk is None else list(map(float, talk.terms)),
        link.pushes if talk is not None and talk.report.push else 0,
    )


class _Recovery:
    """The same on all ranks, but for what each has itself."""

    def __init__(self, link: RemoteCentre, left: World, found: Sequence[Standing]) -> None:
        self._link, self._left, self._found = link, left, found
        self._places = {its.rank: at for at, its in enumerate(found)}
        self._workers, self._holders = link.roles.workers, link.roles.holders
        self._kept = [at for at, holder in enumerate(self._holders) if holder in self._places]
        """The pieces whose servers are left."""
        self._restored: dict[int, tuple[int, bool]] = {}
        """The others: from whose copies, and whether they had an optimizer's state."""
        self._in_pieces: list[Counts] = []
        """Pushes of each worker in each piece, as it is put together."""

    def recover(self) -> SavedCentre:
        ledger = self._copy_ledger()
        self._finish_reports(ledger)
        centre, states = self._copy_pieces()
        self._finish_pushes(ledger, centre, states)
        lost = {
            worker: self._has_arrived(ledger, worker)
            for worker, rank in enumerate(self._workers)
            if rank not in self._places
        }
        ranks = [(self._worker(its.rank), its.unreported) for its in self._found]
        state = join_states(states, [length(piece) for piece in self._link.pieces])
        note = "; ".join(self._describe(ledger, lost))
        return ledger.carry_over(centre, state, lost, ranks, note)

    def _worker(self, rank: int) -> int | None:
        return self._workers.index(rank) if rank in self._workers else None

    def _copy_ledger(self) -> FullLedger:
        """The newest that a rank has."""
        ledger = FullLedger.begin(len(self._workers), self._link.spec)
        newest = max(range(len(self._found)), key=lambda at: self._found[at].entries)
        if self._found[newest].entries >= 0:
            copy: Vector = np.zeros(ledger.room_of_copy)
            if self._left.rank == newest:
                own = self._link.copy_of_ledger()
                assert own is not None
                copy[: own.size] = own
            self._left.broadcast(copy, newest)
            ledger.read_copy(copy)
        return ledger

    def _finish_reports(self, ledger: FullLedger) -> None:
        """Enter what the ledger was not told, or had not told on; nothing is granted."""
        for its in self._found:
            worker = self._worker(its.rank)
            if worker is None or its.report is None:
                continue
            if ledger.holdings.reports_of(worker) < its.reports:
                ledger.enter(worker, WorkerReport._make(its.report)._replace(wanted=0))

    def _copy_pieces(self) -> tuple[Vector, list[State]]:
        """The centre and its optimizer's state, piece by piece."""
        link, centre = self._link, np.empty_like(self._link.weights)
        states = []
        for at, (holder, piece) in enumerate(zip(self._holders, link.pieces, strict=True)):
            state = link.spec.init_state(centre[piece])
            if holder in self._places:
                root = self._places[holder]
                if root == self._left.rank and link.server is not None:
                    centre[piece] = link.server.centre
                    state = {name: array.copy() for name, array in link.server.state.items()}
                for array in state.values():
                    self._left.broadcast(array, root)
                counts = self._found[root].serves
                assert counts is not None
            elif length(piece):
                root, counts = self._choose_copy(at)
                if root == self._left.rank:
                    self._recall(at, centre[piece])
                self._restored[at] = root, bool(state)
            else:
                root, counts = 0, [0.0] * len(self._workers)
            self._left.broadcast(centre[piece], root)
            self._in_pieces.append(counts)
            states.append(state)
        self._complete(states)
        return centre, states

    def _complete(self, states: Sequence[State]) -> None:
        """Numbers that all pieces have in common, for pieces that begin anew."""
        for at in self._restored:
            for name, array in states[at].items():
                if self._kept and array.size != length(self._link.pieces[at]):
                    array[:] = states[self._kept[0]].get(name, array)

    def _choose_copy(self, at: int) -> tuple[int, Counts]:
        """Who has the newest of a piece; the pushes in that."""
        known = [(its.seen[at], place) for place, its in enumerate(self._found) if its.seen]
        known = [(counts, place) for counts, place in known if counts]
        if known:
            counts, place = max(known, key=lambda pair: (sum(pair[0]), -pair[1]))
            return place, counts
        trained = [place for place, its in enumerate(self._found) if its.rank in self._workers]
        if not trained:
            raise TrainingError(
                "all workers were lost, and with them all copies of what lost servers held of the "
                "centre; go on from a checkpoint: --resume, or --restarts"
            )
        return trained[0], [0.0] * len(self._workers)

    def _recall(self, at: int, out: Vector) -> None:
        """A piece of the centre, as the last vectors from its server tell it; if none have come,
        the replica."""
        link, seen = self._link, self._link.seen
        if seen is None:
            out[:] = link.weights[link.pieces[at]]
            return
        reply, codecs = seen.replies[at], link.codecs[at]
        if seen.kind == READ:
            out[:] = reply.vector(out.size, out.dtype)
            return
        got, said = np.empty_like(out), np.empty_like(out)
        codecs.pull.recall(reply.payload[: codecs.nbytes], got)
        codecs.push.recall(seen.requests[at].payload[: codecs.nbytes], said)
        assert link.spec.rule is not None
        out[:] = link.spec.rule.recall_centre(said, got, seen.terms)

    def _describe(self, ledger: FullLedger, lost: Mapping[int, bool]) -> Iterator[str]:
        """For the user: what was restored from copies, and what is lost with it."""
        several = len(self._holders) > 1
        for at, (root, had_state) in self._restored.items():
            updates = self._count_lost(self._in_pieces[at], ledger, lost)
            what = (
                f"piece {at + 1} of {len(self._holders)} of the centre" if several else "the centre"
            )
            yield (
                f"{what} is restored from rank {self._found[root].rank}'s copy, "
                f"{updates} update{'s' * (updates != 1)} since then "
                f"{'is' if updates == 1 else 'are'} lost"
                f"{', its optimizer begins anew' if had_state else ''}"
            )
        for worker, arrived in lost.items():
            has = self._pieces_with_last_push(ledger, worker, self._kept)
            if arrived and has and not all(has):
                yield (
                    f"the last push of rank {self._workers[worker]} reached {sum(has)} of "
                    f"{len(has)} servers"
                )

    def _count_lost(self, counts: Counts, ledger: FullLedger, lost: Mapping[int, bool]) -> int:
        """Pushes that count, and are not in a copy of a piece."""
        total = 0
        for worker, rank in enumerate(self._workers):
            last = ledger.holdings.pushes(worker)[0]
            if rank in self._places:
                last -= bool(self._found[self._places[rank]].number)  # that one is finished
            else:
                last -= not lost[worker]  # its batches are granted again
            total += max(0, last - int(counts[worker]))
        return total

    def _finish_pushes(self, ledger: FullLedger, centre: Vector, states: Sequence[State]) -> None:
        """Let the centre move by the pushes of those that are left, where it has not."""
        rule = self._link.spec.rule
        for root, its in enumerate(self._found):
            if not its.number or rule is None:
                continue
            worker = self._workers.index(its.rank)
            scale = ledger.holdings.pushes(worker)[1]
            terms = PushTerms._make(its.terms)._replace(scale=scale)
            for at, piece in enumerate(self._link.pieces):
                if not scale or not length(piece) or self._in_pieces[at][worker] >= its.number:
                    continue
                push = np.empty_like(centre[piece])
                if root == self._left.rank:
                    self._recall_push(at, push)
                self._left.broadcast(push, root)
                rule.absorb(push, centre[piece], states[at], terms)

    def _recall_push(self, at: int, out: Vector) -> None:
        """This rank's, which is under way."""
        talk, codecs = self._link.under_way, self._link.codecs[at]
        assert talk is not None
        codecs.push.recall(talk.packets.requests[at].payload[: codecs.nbytes], out)

    def _has_arrived(self, ledger: FullLedger, worker: int) -> bool:
        """Whether the last push of a lost worker counts: some piece has seen it."""
        has = self._pieces_with_last_push(ledger, worker, range(len(self._holders)))
        return any(has) or not has

    def _pieces_with_last_push(
        self, ledger: FullLedger, worker: int, pieces: Iterable[int]
    ) -> list[bool]:
        """Which of these pieces of the centre have seen it."""
        number = ledger.holdings.pushes(worker)[0]
        sizes = list(map(length, self._link.pieces))
        return [self._in_pieces[at][worker] >= number for at in pieces if sizes[at]]
