"""A centre that other ranks hold, reached by messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.comm import Pending, World, wait_until
from paceline.core.chunks import split_evenly
from paceline.core.vectors import Vector
from paceline.errors import Interrupted, WorldError
from paceline.rules import PushTerms, State
from paceline.sync.parameter_server.codec_pair import CodecPair, FeedbackCodec
from paceline.sync.parameter_server.ledger import LedgerReply, WorkerReport
from paceline.sync.parameter_server.packets import (
    EXCHANGE,
    EXCHANGE_SHARD,
    READ,
    REPORT,
    SAVE,
    SIGN_OFF,
    Packet,
)
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
    """

    def __init__(
        self,
        world: World,
        spec: CentreSpec,
        weights: Vector,
        roles: Roles,
        server: ShardServer | None,
    ) -> None:
        self._world, self._holders, self._server = world, roles.holders, server
        self._tags, self._trains = spec.tags, world.rank in roles.workers
        self._pieces = split_evenly(weights.size, len(roles.holders))
        self.bytes_sent, self._abandoned = 0, False
        if not self._trains:
            return
        codec, with_centre = spec.codec(weights), spec.replies_with_centre
        self._codecs = [CodecPair(with_centre, codec, weights[piece]) for piece in self._pieces]
        largest = max(piece.stop - piece.start for piece in self._pieces)
        rooms = [max(largest * weights.itemsize, pair.nbytes) for pair in self._codecs]
        self._requests = [Packet(room) for room in rooms]
        self._replies = [Packet(room) for room in rooms]
        self._scratch = np.empty(largest, weights.dtype)

    def report(self, report: WorkerReport) -> LedgerReply:
        """Report to the ledger, and get its totals."""
        self._requests[0].ask(REPORT, report, PushTerms())
        self._travel([0], [0])
        return self._replies[0].answered()

    def push_pull(self, report: WorkerReport, terms: PushTerms, port: WorkerPort) -> LedgerReply:
        """One exchange of this worker with the centre."""
        known = self.report(report) if len(self._holders) > 1 else None
        if known is not None:
            terms = terms._replace(scale=known.scale)
        kind = EXCHANGE if known is None else EXCHANGE_SHARD
        everywhere = range(len(self._holders))
        filled = [self._fill(at, kind, report, terms, port) for at in everywhere]
        self._travel(everywhere, filled)
        reply = known or self._replies[0].answered()
        if report.pull or not reply.scale:
            for at in everywhere:
                self._take(at, port)
        return reply

    def _fill(
        self, at: int, kind: int, report: WorkerReport, terms: PushTerms, port: WorkerPort
    ) -> int:
        """Write the request to one server; how many bytes of payload it has."""
        request, codecs, piece = self._requests[at], self._codecs[at], self._pieces[at]
        request.ask(kind, report, terms)
        if not report.push:
            return 0
        if codecs.codec is None:
            port.write_push(
                piece, terms, request.vector(piece.stop - piece.start, self._scratch.dtype)
            )
        else:
            sent = self._scratch[: piece.stop - piece.start]
            port.write_push(piece, terms, sent)
            codecs.push.encode(sent, request.payload[: codecs.nbytes])
        return codecs.nbytes

    def _take(self, at: int, port: WorkerPort) -> None:
        """Hand one server's reply to the worker."""
        reply, codecs, piece = self._replies[at], self._codecs[at], self._pieces[at]
        self.bytes_sent += codecs.nbytes
        if codecs.codec is None:
            port.accept_reply(piece, reply.vector(piece.stop - piece.start, self._scratch.dtype))
        else:
            got = self._scratch[: piece.stop - piece.start]
            codecs.pull.decode(reply.payload[: codecs.nbytes], got)
            port.accept_reply(piece, got)

    def read_into(self, out: Vector) -> None:
        """Copy the centre as it is now, each shard whole."""
        everywhere = range(len(self._holders))
        for at in everywhere:
            self._requests[at].ask(READ, WorkerReport(), PushTerms())
        self._travel(everywhere, [0] * len(self._holders))
        for at, piece in enumerate(self._pieces):
            out[piece] = self._replies[at].vector(piece.stop - piece.start, out.dtype)

    def save(self, number: int) -> None:
        """Let every server save its shard; nobody else asks for anything now."""
        if self._world.rank != 0:  # it leads
            return
        everywhere = range(len(self._holders))
        for at in everywhere:
            self._requests[at].ask(SAVE, WorkerReport(samples=number), PushTerms())
        self._travel(everywhere, [0] * len(self._holders))

    def on_save(self, keep: Keep) -> None:
        """What the server of this rank, if it has one, is asked to save goes there."""
        if self._server is not None:
            self._server.keep = keep

    @property
    def residuals(self) -> State:
        """What rounding has still to bring to the servers."""
        if not self._trains:
            return {}
        errors = ((at, codecs.push) for at, codecs in enumerate(self._codecs))
        return {str(at): push.error for at, push in errors if isinstance(push, FeedbackCodec)}

    def sign_off(self, quit: bool = False) -> None:
        """This worker will not ask again."""
        pending = []
        for holder, request in zip(self._holders, self._requests, strict=True):
            request.ask(SIGN_OFF, WorkerReport(quit=quit), PushTerms())
            pending.append(self._world.isend(request.filled(0), holder, self._tags[0]))
        self._wait_for(pending)

    def carry_over(self, left: World, in_hand: Mapping[int, Sequence[int]]) -> SavedCentre:
        raise WorldError(
            "ranks were lost, and the centre lies on servers or on several nodes: such a run "
            "cannot go on without them yet; go on with --resume, or start with --restarts"
        )

    def abandon(self) -> None:
        """This rank has failed: serve nobody any more, and wait for nobody."""
        self._abandoned = True
        if self._server is not None:
            self._server.abandon()

    def close(self, out: Vector) -> None:
        """The last state of the centre, on every rank; all come here together."""
        if self._server is not None:
            self._server.join()
            if self._server.quit:
                raise Interrupted("the workers have saved, and left")
        for holder, piece in zip(self._holders, self._pieces, strict=True):
            if holder == self._world.rank and self._server is not None:
                out[piece] = self._server.centre
            self._world.broadcast(out[piece], root=holder)

    def _travel(self, places: Sequence[int], filled: Sequence[int]) -> None:
        """Send the requests and wait for the replies, for which receives are posted before."""
        pending: list[Pending] = []
        for at in places:
            pending.append(
                self._world.irecv(self._replies[at].room, self._holders[at], self._tags[1])
            )
        for at, nbytes in zip(places, filled, strict=True):
            sent = self._requests[at].filled(nbytes)
            self.bytes_sent += sent.nbytes
            pending.append(self._world.isend(sent, self._holders[at], self._tags[0]))
        self._wait_for(pending)

    def _wait_for(self, pending: Sequence[Pending]) -> None:
        wait_until(lambda: self._abandoned or all(message.done() for message in pending))
        if self._abandoned:
            raise WorldError(f"rank {self._world.rank} has given its exchange up")
