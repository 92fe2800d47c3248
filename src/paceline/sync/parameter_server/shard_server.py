"""A rank's piece of the centre, served by messages: to workers on this node and on others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from paceline.comm import Backoff, Buffer, Pending, World
from paceline.core.chunks import Span
from paceline.core.vectors import Vector
from paceline.errors import RanksLost, WorldError
from paceline.rules import PushTerms
from paceline.sync.parameter_server.codec_pair import CodecPair
from paceline.sync.parameter_server.full_ledger import FullLedger
from paceline.sync.parameter_server.ledger import Ledger, LedgerReply, WorkerReport
from paceline.sync.parameter_server.packets import EXCHANGE, READ, REPORT, SAVE, SIGN_OFF, Packet
from paceline.sync.parameter_server.spec import CentreSpec
from paceline.sync.saved import Keep, pack

_LOOK_EVERY_S = 0.002
"""How often an idle server polls for requests: 1 to 2 % of a core."""


class ShardServer:
    """Answers the workers' requests in a thread of its own until each has signed off.

    A receive is posted for every worker before it can ask; a worker asks again only when it has its
    answer, so one buffer each way is enough. With nobody asking the thread sleeps.

    In an elastic world a reply of the ledger comes with a copy of it, requests to other servers
    come with the worker's, and the reply to a push or pull says what each worker has pushed.
    """

    def __init__(
        self,
        world: World,
        spec: CentreSpec,
        weights: Vector,
        piece: Span,
        workers: Sequence[int],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """This rank serves that piece of the weights, which all ranks have in common."""
        start = weights[piece]
        self.centre = start.copy()
        self.keep: Keep | None = None
        """Called, in the server's thread, with its part of a checkpoint; requests to save that come
        before it is set wait."""
        self.quit = False
        """The workers signed off because the run is to be resumed later."""
        self._world, self._spec, self._workers, self._tags = world, spec, workers, spec.tags
        self.state = spec.init_state(start)
        numbers = np.zeros(Ledger.size(len(workers)))
        if spec.saved is not None:
            self.state = spec.saved.piece_of_state(piece, self.state)
            Ledger.begin_at(numbers, spec.saved.ledger)
        self._ledger = Ledger(numbers, len(workers), spec.batches, spec.again)
        self._full = FullLedger.begin(len(workers), spec) if world.elastic else None
        self.ledger_copy: Vector | None = None
        """The last that came with a request, if another rank keeps the ledger."""
        self.pushed = np.zeros(len(workers))
        """How many pushes of each worker the centre has seen."""
        more = 0 if self._full is None else self._full.room_of_copy
        self._copies = [np.empty(more) for _ in workers]
        self._sent, self._kept = np.empty_like(start), np.empty_like(start)
        codec = spec.codec(start)
        self._codecs = [CodecPair(spec.replies_with_centre, codec, start) for _ in workers]
        room = max(start.nbytes, self._codecs[0].nbytes)
        self._requests = [Packet(room, more) for _ in workers]
        self._replies = [Packet(room, len(workers)) for _ in workers]
        self._expected: list[Pending | None] = [None] * len(workers)
        for worker in range(len(workers)):
            self._expect(worker)
        self._on_error, self._abandoned = on_error, False
        self._thread = threading.Thread(target=self._run, name="paceline-server", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until all workers have signed off."""
        while self._thread.is_alive():
            self._thread.join(0.1)

    def abandon(self) -> None:
        """Serve nobody any more."""
        self._abandoned = True
        self.join()

    def settle(self) -> None:
        """Ranks were lost: take in the requests that have arrived; nobody gets an answer."""
        self.abandon()
        for worker, ask in enumerate(self._expected):
            with suppress(RanksLost):
                if ask is not None and ask.done() and self._requests[worker].asked()[0] != SAVE:
                    self._take_in(worker)
            self._expected[worker] = None

    def copy_of_ledger(self) -> Vector | None:
        """As it is now; where this rank does not keep it, as a worker last sent it."""
        if self._full is None or not self._full.holdings.reports:
            return self.ledger_copy
        return self._full.write_copy(np.empty(self._full.room_of_copy))

    def _run(self) -> None:
        try:
            self._serve()
        except RanksLost:
            return  # the thread that trains hears of it, too
        except BaseException as error:
            if not self._world_has_failed():
                self._on_error(error)

    def _world_has_failed(self) -> bool:
        """Whether another rank has failed, which says so itself."""
        try:
            self._world.raise_if_failed()
        except (WorldError, RanksLost):
            return True
        return False

    def _serve(self) -> None:
        patience = Backoff(_LOOK_EVERY_S)
        replies: list[Pending] = []
        while not self._abandoned and (replies or any(self._expected)):
            asking = [at for at, ask in enumerate(self._expected) if self._may_answer(at, ask)]
            replies = [reply for reply in replies if not reply.done()]
            for worker in asking:
                replies += self._answer(worker)
            patience.reset() if asking else patience.pause()
        if not self._world.elastic:  # else they are looked at when the ranks that are left settle
            for ask in filter(None, self._expected):
                ask.cancel()

    def _may_answer(self, worker: int, ask: Pending | None) -> bool:
        if ask is None or not ask.done():
            return False
        return self.keep is not None or self._requests[worker].asked()[0] != SAVE

    def _expect(self, worker: int) -> None:
        self._expected[worker] = self._world.irecv(
            self._requests[worker].room, self._workers[worker], self._tags[0]
        )

    def _answer(self, worker: int) -> list[Pending]:
        """Do what was asked, and send what it gives."""
        sent = self._take_in(worker)
        if sent:
            self._expect(worker)  # before the worker has its answer and may ask again
        to = self._workers[worker]
        return [self._world.isend(message, to, tag) for message, tag in sent]

    def _take_in(self, worker: int) -> list[tuple[Buffer, int]]:
        """Do what was asked; the messages to send, and their tags."""
        request = self._requests[worker]
        kind, report, terms = request.asked()
        if kind == SIGN_OFF:
            self._expected[worker] = None
            self.quit = self.quit or bool(report.quit)
            return []
        reply, filled, sent = self._replies[worker], 0, []
        if kind in (REPORT, EXCHANGE):
            entered = self._enter(worker, report)
            terms = terms._replace(scale=entered.scale)
            reply.answer(entered)
            if self._full is not None:
                sent.append((self._full.write_copy(self._copies[worker]), self._tags[2]))
        else:
            reply.answer(LedgerReply(scale=terms.scale))
        if kind == READ:
            reply.vector(self.centre.size, self.centre.dtype)[:] = self.centre
            filled = self.centre.nbytes
        elif kind == SAVE:
            assert self.keep is not None
            ledger = self._ledger if self._full is None else self._full.ledger
            self.keep(int(report.samples), pack(self.centre, self.state, ledger))
        elif kind != REPORT:
            filled = self._exchange(worker, report, terms)
            self._note_push(worker, kind, report)
        # Only behind a vector: else it would lie where the worker keeps the last one.
        more = self.pushed if filled and self._full is not None else None
        return [(reply.filled(filled, more), self._tags[1]), *sent]

    def _enter(self, worker: int, report: WorkerReport) -> LedgerReply:
        if self._full is not None:
            return self._full.enter(worker, report)
        return self._ledger.enter(worker, report, self._spec.staleness_weight)

    def _note_push(self, worker: int, kind: int, report: WorkerReport) -> None:
        """A push is in the centre, and in an elastic world here is what the ledger knows of it."""
        self.pushed[worker] += report.push
        copy = self._requests[worker].more()
        if copy.size and self._full is not None and not self._full.holdings.reports:
            self.ledger_copy = copy

    def _exchange(self, worker: int, report: WorkerReport, terms: PushTerms) -> int:
        """Let a push move the centre and write the answer; how many bytes it has."""
        codecs, sent = self._codecs[worker], self._sent
        if report.push:
            codecs.push.decode(self._requests[worker].payload[: codecs.nbytes], sent)
            if terms.scale and self._spec.rule is not None:
                self._spec.rule.absorb(sent, self.centre, self.state, terms)
        if not (report.pull or not terms.scale):
            return 0
        reply = self._replies[worker].payload[: codecs.nbytes]
        if self._spec.replies_with_centre:
            codecs.pull.encode(self.centre, reply)
            return codecs.nbytes
        codecs.pull.encode(sent, reply)
        if codecs.codec is not None:  # the centre moves by what the worker will get
            codecs.codec.decode(reply, self._kept)
            self._kept -= sent
            self.centre += self._kept
        return codecs.nbytes
