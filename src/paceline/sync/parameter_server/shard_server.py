"""A rank's piece of the centre, served by messages: to workers on this node and on others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.comm import Backoff, Pending, World
from paceline.comm.wire import make_codec
from paceline.core.vectors import Vector
from paceline.errors import WorldError
from paceline.rules import PushTerms
from paceline.sync.parameter_server.codec_pair import CodecPair
from paceline.sync.parameter_server.ledger import Ledger, LedgerReply, WorkerReport
from paceline.sync.parameter_server.packets import FAREWELL, LOOK, MEET, REPORT, SAVE, Packet
from paceline.sync.saved import Keep, SavedCentre, pack

_LOOK_EVERY_S = 0.002
"""How often a host that nobody asks looks for requests: 1 to 2 % of a core."""


class ShardServer:
    """Answers the workers' requests in a thread of its own until each has said farewell.

    A receive is posted for every worker before it can ask; a worker asks again only when it has its
    answer, so one buffer each way is enough. With nobody asking the thread sleeps.
    """

    def __init__(
        self,
        world: World,
        rule: Any,
        start: Vector,
        workers: Sequence[int],
        batches: int,
        tags: tuple[int, int],
        on_error: Callable[[BaseException], None],
        saved: tuple[SavedCentre, slice] | None = None,
    ) -> None:
        """`start` is this host's piece of the vector; `tags` are of requests and replies.

        In a run that was interrupted it is this piece of a `saved` centre.
        """
        self.centre = start.copy()
        self.keep: Keep | None = None
        """Called, in the host's thread, with what a checkpoint is to have of it; who asks to save
        before it is set waits for it."""
        self.quit = False
        """The workers said farewell since the run is to go on later."""
        self._world, self._rule, self._workers, self._tags = world, rule, workers, tags
        self._state = rule.init_centre(start.size, start.dtype) if start.size else {}
        numbers = np.zeros(Ledger.size(len(workers)))
        if saved is not None:
            self._state = saved[0].piece_of_state(saved[1], self._state)
            Ledger.begin_at(numbers, saved[0].ledger)
        again = saved[0].again if saved is not None else ()
        self._ledger = Ledger(numbers, len(workers), batches, again)
        self._sent, self._kept = np.empty_like(start), np.empty_like(start)
        codec = make_codec(rule.wire, start.dtype)
        self._lines = [CodecPair(rule.reply_kind, codec, start) for _ in workers]
        room = max(start.nbytes, self._lines[0].nbytes)
        self._requests = [Packet(room) for _ in workers]
        self._replies = [Packet(room) for _ in workers]
        self._expected: list[Pending | None] = [None] * len(workers)
        for worker in range(len(workers)):
            self._expect(worker)
        self._on_error, self._abandoned = on_error, False
        self._thread = threading.Thread(target=self._run, name="paceline-host", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until all workers have said farewell."""
        while self._thread.is_alive():
            self._thread.join(0.1)

    def abandon(self) -> None:
        """Serve nobody any more."""
        self._abandoned = True
        self.join()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            if not self._world_has_failed():
                self._on_error(error)

    def _world_has_failed(self) -> bool:
        """Whether another rank has failed, which says so itself."""
        try:
            self._world.raise_if_failed()
        except WorldError:
            return True
        return False

    def _serve(self) -> None:
        patience = Backoff(_LOOK_EVERY_S)
        replies: list[Pending] = []
        while not self._abandoned and (replies or any(self._expected)):
            asking = [at for at, ask in enumerate(self._expected) if self._may_answer(at, ask)]
            replies = [reply for reply in replies if not reply.done()]
            replies += [reply for reply in map(self._answer, asking) if reply is not None]
            patience.reset() if asking else patience.pause()
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

    def _answer(self, worker: int) -> Pending | None:
        kind, report, terms = self._requests[worker].asked()
        if kind == FAREWELL:
            self._expected[worker] = None
            self.quit = self.quit or bool(report.quit)
            return None
        reply, filled = self._replies[worker], 0
        if kind in (REPORT, MEET):
            news = self._ledger.enter(worker, report, self._rule.staleness_weight)
            terms = terms._replace(scale=news.scale)
            reply.answer(news)
        else:
            reply.answer(LedgerReply(scale=terms.scale))
        if kind == LOOK:
            reply.vector(self.centre.size, self.centre.dtype)[:] = self.centre
            filled = self.centre.nbytes
        elif kind == SAVE:
            assert self.keep is not None
            self.keep(int(report.samples), pack(self.centre, self._state, self._ledger))
        elif kind != REPORT:
            filled = self._trade(worker, report, terms)
        self._expect(worker)  # before the worker has its answer and may ask again
        return self._world.isend(reply.filled(filled), self._workers[worker], self._tags[1])

    def _trade(self, worker: int, report: WorkerReport, terms: PushTerms) -> int:
        """Let a push move the centre and write the answer; how many bytes it has."""
        lines, sent = self._lines[worker], self._sent
        if report.push:
            lines.push.decode(self._requests[worker].payload[: lines.nbytes], sent)
            if terms.scale:
                self._rule.absorb(sent, self.centre, self._state, terms)
        if not (report.pull or not terms.scale):
            return 0
        reply = self._replies[worker].payload[: lines.nbytes]
        if self._rule.reply_kind == "centre":
            lines.pull.encode(self.centre, reply)
            return lines.nbytes
        lines.pull.encode(sent, reply)
        if lines.codec is not None:  # the centre moves by what the worker will get
            lines.codec.decode(reply, self._kept)
            self._kept -= sent
            self.centre += self._kept
        return lines.nbytes
