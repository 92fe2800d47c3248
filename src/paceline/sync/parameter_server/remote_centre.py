"""A centre that other ranks hold, reached by messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.comm import Pending, World, wait_until
from paceline.core.chunks import length, split_evenly
from paceline.core.vectors import Vector
from paceline.errors import Interrupted, WorldError
from paceline.rules import PushTerms, State
from paceline.sync.parameter_server.codec_pair import CodecPair, FeedbackCodec
from paceline.sync.parameter_server.conversation import Conversation, Packets
from paceline.sync.parameter_server.full_ledger import FullLedger
from paceline.sync.parameter_server.ledger import LedgerReply, WorkerReport
from paceline.sync.parameter_server.packets import (
    EXCHANGE,
    EXCHANGE_SHARD,
    READ,
    REPORT,
    SAVE,
    SIGN_OFF,
)
from paceline.sync.parameter_server.recovery import recover_centre
from paceline.sync.parameter_server.roles import Roles
from paceline.sync.parameter_server.shard_server import ShardServer
from paceline.sync.parameter_server.spec import CentreSpec
from paceline.sync.parameter_server.worker_port import WorkerPort
from paceline.sync.saved import Keep, SavedCentre


class RemoteCentre:
    """A worker's connection to the servers of the centre, each of which holds a contiguous shard.

    The first server keeps the ledger. With a single one an exchange is one message there and one
    back. With several the ledger is asked first, since it says how much a push counts; then all
    pieces travel at once.

    In an elastic world a worker keeps what servers that are lost have told it: the last vectors,
    which lie in its buffers anyway, and a copy of the ledger (recovery.py).
    """

    def __init__(
        self,
        world: World,
        spec: CentreSpec,
        weights: Vector,
        roles: Roles,
        server: ShardServer | None,
    ) -> None:
        self.world, self.roles, self.server, self.spec = world, roles, server, spec
        self.pieces, self.weights = split_evenly(weights.size, len(roles.holders)), weights
        self.bytes_sent, self._abandoned = 0, False
        self._tags, self._trains = spec.tags, world.rank in roles.workers
        self.under_way: Conversation | None = None
        """A report or an exchange that has begun and is not over."""
        self.seen: Packets | None = None
        """With the last vectors that came from the servers; in an elastic world."""
        self.reports = self.pushes = 0
        """How many this worker has begun to send."""
        self.codecs: list[CodecPair] = []
        self._newest: int | None = None
        """Which of the copies of the ledger is whole."""
        if not self._trains:
            return
        codec, with_centre = spec.codec(weights), spec.replies_with_centre
        self.codecs = [CodecPair(with_centre, codec, weights[piece]) for piece in self.pieces]
        largest = max(map(length, self.pieces))
        rooms = [max(largest * weights.itemsize, pair.nbytes) for pair in self.codecs]
        workers = len(roles.workers)
        more = 1 + FullLedger.size(workers, spec) if world.elastic else 0
        # One set for what is under way, one with what came last.
        sets = 2 if world.elastic else 1
        self._sets = [Packets(rooms, more, workers) for _ in range(sets)]
        self._copies = [np.empty(more) for _ in range(sets)]
        self._scratch = np.empty(largest, weights.dtype)

    def report(self, report: WorkerReport) -> LedgerReply:
        """Report to the ledger, and get its totals."""
        packets = self._begin(REPORT, report, PushTerms(), None)
        packets.requests[0].ask(REPORT, report, PushTerms())
        self._travel(packets, [0], [0], with_ledger=True)
        self.under_way = None
        return packets.replies[0].answered()

    def push_pull(self, report: WorkerReport, terms: PushTerms, port: WorkerPort) -> LedgerReply:
        """One exchange of this worker with the centre."""
        several = len(self.roles.holders) > 1
        kind = EXCHANGE_SHARD if several else EXCHANGE
        packets, known = self._begin(kind, report, terms, port), None
        talk = self.under_way
        assert talk is not None
        if several:
            packets.requests[0].ask(REPORT, report, PushTerms())
            self._travel(packets, [0], [0], with_ledger=True)
            known = packets.replies[0].answered()
            terms = talk.terms = terms._replace(scale=known.scale)
        everywhere = range(len(self.pieces))
        filled = [self._fill(at, kind, report, terms, port, packets) for at in everywhere]
        talk.is_filled = True
        self._travel(packets, everywhere, filled, with_ledger=not several)
        reply = known or packets.replies[0].answered()
        if report.pull or not reply.scale:
            for at in everywhere:
                self._take(at, port, packets)
            self._keep(packets, EXCHANGE, terms._replace(scale=reply.scale))
        self.under_way = None
        return reply

    def _begin(
        self, kind: int, report: WorkerReport, terms: PushTerms, port: WorkerPort | None
    ) -> Packets:
        """The buffers for it: not those with the last vectors."""
        packets = next(packets for packets in self._sets if packets is not self.seen)
        if kind in (REPORT, EXCHANGE, EXCHANGE_SHARD):
            self.reports += 1
            self.pushes += bool(report.push)
            self.under_way = Conversation(report, terms, port, packets)
        return packets

    def _keep(self, packets: Packets, kind: int, terms: PushTerms) -> None:
        """These have the last vectors."""
        if self.world.elastic:
            packets.kind, packets.terms, self.seen = kind, terms, packets

    def _fill(
        self,
        at: int,
        kind: int,
        report: WorkerReport,
        terms: PushTerms,
        port: WorkerPort,
        packets: Packets,
    ) -> int:
        """Write the request to one server; how many bytes of payload it has."""
        request, codecs, piece = packets.requests[at], self.codecs[at], self.pieces[at]
        request.ask(kind, report, terms)
        if not report.push:
            return 0
        if codecs.codec is None:
            port.write_push(piece, terms, request.vector(length(piece), self._scratch.dtype))
        else:
            sent = self._scratch[: length(piece)]
            port.write_push(piece, terms, sent)
            codecs.push.encode(sent, request.payload[: codecs.nbytes])
        return codecs.nbytes

    def _take(self, at: int, port: WorkerPort, packets: Packets) -> None:
        """Hand one server's reply to the worker."""
        reply, codecs, piece = packets.replies[at], self.codecs[at], self.pieces[at]
        self.bytes_sent += codecs.nbytes
        if codecs.codec is None:
            port.accept_reply(piece, reply.vector(length(piece), self._scratch.dtype))
        else:
            got = self._scratch[: length(piece)]
            codecs.pull.decode(reply.payload[: codecs.nbytes], got)
            port.accept_reply(piece, got)

    def read_into(self, out: Vector) -> None:
        """Copy the centre as it is now, each shard whole."""
        packets = self._ask_all(READ, WorkerReport())
        self._keep(packets, READ, PushTerms())
        for at, piece in enumerate(self.pieces):
            out[piece] = packets.replies[at].vector(length(piece), out.dtype)

    def save(self, number: int) -> None:
        """Let every server save its shard; nobody else asks for anything now."""
        if self.world.rank == 0:  # it leads
            self._ask_all(SAVE, WorkerReport(samples=number))

    def _ask_all(self, kind: int, report: WorkerReport) -> Packets:
        packets = self._begin(kind, report, PushTerms(), None)
        for request in packets.requests:
            request.ask(kind, report, PushTerms())
        self._travel(packets, range(len(self.pieces)), [0] * len(self.pieces))
        return packets

    def on_save(self, keep: Keep) -> None:
        """What the server of this rank, if it has one, is asked to save goes there."""
        if self.server is not None:
            self.server.keep = keep

    @property
    def residuals(self) -> State:
        """What rounding has still to bring to the servers."""
        errors = ((at, codecs.push) for at, codecs in enumerate(self.codecs))
        return {str(at): push.error for at, push in errors if isinstance(push, FeedbackCodec)}

    def sign_off(self, quit: bool = False) -> None:
        """This worker will not ask again."""
        pending, packets = [], self._begin(SIGN_OFF, WorkerReport(), PushTerms(), None)
        for holder, request in zip(self.roles.holders, packets.requests, strict=True):
            request.ask(SIGN_OFF, WorkerReport(quit=quit), PushTerms())
            pending.append(self.world.isend(request.filled(0), holder, self._tags[0]))
        self._wait_for(pending)

    def carry_over(self, left: World, unreported: int) -> SavedCentre:
        """From the servers that are left, or copies of what the others had."""
        if self.server is not None:
            self.server.settle()
        talk = self.under_way
        if talk is not None and talk.port is not None and not talk.is_filled:
            talk.is_filled = True  # once: a push takes what it brings from the worker's state
            for at in range(len(self.pieces)):
                self._fill(at, EXCHANGE, talk.report, talk.terms, talk.port, talk.packets)
        return recover_centre(self, left, unreported)

    def copy_of_ledger(self) -> Vector | None:
        """The newest that this rank has; None if it never heard of it."""
        told = self._told()
        known = [] if told is None else [told]
        served = None if self.server is None else self.server.copy_of_ledger()
        known += [] if served is None else [served]
        workers = len(self.roles.workers)
        return max(known, key=lambda copy: FullLedger.reports_in(copy, workers), default=None)

    def abandon(self) -> None:
        """This rank has failed: serve nobody any more, and wait for nobody."""
        self._abandoned = True
        if self.server is not None:
            self.server.abandon()

    def close(self, out: Vector) -> None:
        """The last state of the centre, on every rank; all come here together."""
        if self.server is not None:
            self.server.join()
            if self.world.elastic:  # then that is why it has ended
                self.world.raise_if_failed()
            if self.server.quit:
                raise Interrupted("the workers have saved, and left")
        for holder, piece in zip(self.roles.holders, self.pieces, strict=True):
            if holder == self.world.rank and self.server is not None:
                out[piece] = self.server.centre
            self.world.broadcast(out[piece], root=holder)

    def _travel(
        self,
        packets: Packets,
        places: Sequence[int],
        filled: Sequence[int],
        with_ledger: bool = False,
    ) -> None:
        """Send the requests and wait for the replies, for which receives are posted before;
        `with_ledger`: one of the first server's, which comes with a copy of it."""
        holders, world, pending = self.roles.holders, self.world, list[Pending]()
        told = None if with_ledger else self._told()
        for at in places:
            pending.append(world.irecv(packets.replies[at].room, holders[at], self._tags[1]))
        spare = 1 if self._newest == 0 else 0
        if with_ledger and world.elastic:
            pending.append(world.irecv(self._copies[spare], holders[0], self._tags[2]))
        for at, nbytes in zip(places, filled, strict=True):
            sent = packets.requests[at].filled(nbytes, told if nbytes else None)
            self.bytes_sent += sent.nbytes
            pending.append(world.isend(sent, holders[at], self._tags[0]))
        self._wait_for(pending)
        if with_ledger and world.elastic:
            self._newest = spare

    def _told(self) -> Vector | None:
        """The last copy of the ledger that came to this worker."""
        if self._newest is None:
            return None
        copy = self._copies[self._newest]
        return copy[: FullLedger.size_of_copy(copy, len(self.roles.workers))]

    def _wait_for(self, pending: Sequence[Pending]) -> None:
        wait_until(lambda: self._abandoned or all(message.done() for message in pending))
        if self._abandoned:
            raise WorldError(f"rank {self.world.rank} has given its exchange up")
