"""The exchange of rules without a centre: a worker pushes to a peer, whenever it likes."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.comm import ANY_RANK, Pending, World, wait_until
from paceline.comm.wire import ErrorFeedback, make_codec
from paceline.core.vectors import Vector, fill_vectors
from paceline.observe import Stopwatch
from paceline.rules import Gossip
from paceline.sync.asynchronous.base import AsynchronousExchange
from paceline.sync.parameter_server.make import message_tags, open_centre
from paceline.sync.parameter_server.packets import Packet
from paceline.sync.replicas import check_finite_weights
from paceline.sync.settings import ExchangeContext

_LEAST_WEIGHT = 2.0**-100
"""A worker that gave away more than this without getting any keeps the rest."""


class _LedgerOnly:
    """A centre without a vector: only its ledger is used."""

    wire, reply_kind = "float32", "centre"

    @staticmethod
    def staleness_weight(staleness: int) -> float:
        return 1.0


class GossipExchange(AsynchronousExchange):
    """Pushes weights to random peers and merges what comes from them.

    A push is posted and left to travel, and a receive is always posted, so nobody waits for
    anybody. At the end everybody tells everybody how many pushes it has sent, and takes in all that
    are still under way.
    """

    report_every = 10

    def __init__(self, world: World, replica: Any, rule: Gossip, frame: ExchangeContext) -> None:
        weights = replica.parameters()
        ledger, roles = open_centre(
            world,
            _LedgerOnly(),
            0,
            weights[:0],
            frame.number,
            frame.batches,
            frame.saved,
            frame.fail,
        )
        super().__init__(world, replica, ledger, roles)
        self._rule, self._tag = rule, message_tags(frame.number)[2]
        self._weight = 1.0 / world.size
        self._chance = np.random.default_rng([frame.seed, frame.number, world.rank])
        codec = make_codec(rule.wire, weights.dtype)
        self._feedback = ErrorFeedback(codec, weights.size, weights.dtype) if codec else None
        self._codec, self._got = codec, np.empty_like(weights) if codec else None
        self._nbytes = codec.nbytes(weights.size) if codec else weights.nbytes
        self._inbox, self._outbox = Packet(self._nbytes), Packet(self._nbytes)
        self._sent_to = np.zeros(world.size, np.int64)
        self._received = 0
        self._leaving: Pending | None = None
        self._coming = self._post()
        self._bytes_sent = 0

    @property
    def bytes_sent(self) -> int:
        return self._bytes_sent

    def describe(self) -> str:
        return "no server: workers push to each other"

    def _after(self, watch: Stopwatch) -> bool:
        watch.lap("compute")
        self._take_in()
        # A peer that is busy takes its time to receive: a push that finds the last one still on its
        # way is left out, or everybody would wait for the slowest.
        if self._rule.wants_to_push(self._chance) and self._may_push():
            self._push(self._rule.choose_peer(self._chance, self._world.rank, self._world.size))
        due = self._steps_taken % self.report_every == 0
        if due:
            self.report()
        watch.lap("communication")
        return due

    def _before_leaving(self, watch: Stopwatch) -> None:
        """Nothing is owed to anybody."""

    def _while_waiting(self) -> None:
        self._take_in()

    def _may_push(self) -> bool:
        return self._weight > _LEAST_WEIGHT and self._has_left()

    def _push(self, peer: int) -> None:
        self._weight = self._rule.split_weight(self._weight)
        self._outbox.note(self._weight)
        weights = self._replica.parameters()
        check_finite_weights(weights, self._world.rank)
        if self._feedback is None:
            self._outbox.vector(weights.size, weights.dtype)[:] = weights
        else:
            self._feedback.encode(weights, self._outbox.payload[: self._nbytes])
        sent = self._outbox.filled(self._nbytes)
        self._leaving = self._world.isend(sent, peer, self._tag)
        self._sent_to[peer] += 1
        self._bytes_sent += sent.nbytes
        self._note(bytes=sent.nbytes, peer=peer, weight=self._weight)

    def _has_left(self) -> bool:
        """Take in what has come; whether the last push is out of the box."""
        self._take_in()
        return self._leaving is None or self._leaving.done()

    def _post(self) -> Pending:
        return self._world.irecv(self._inbox.room, ANY_RANK, self._tag)

    def _take_in(self) -> None:
        """Merge what has come."""
        while self._coming.done():
            weights = self._replica.parameters()
            if self._codec is None:
                got = self._inbox.vector(weights.size, weights.dtype)
            else:
                assert self._got is not None
                got = self._got
                self._codec.decode(self._inbox.payload[: self._nbytes], got)
            self._weight = self._rule.merge(weights, self._weight, got, self._inbox.noted())
            self._replica.accept_parameters()
            self._received += 1
            self._coming = self._post()

    def _quiesce(self) -> None:
        """Take in all that is still under way."""
        sent_to = self._sent_to.copy()
        self._world.all_reduce(sent_to)
        due = int(sent_to[self._world.rank])
        wait_until(lambda: self._has_left() and self._received == due)
        super()._quiesce()

    def snapshot(self) -> dict[str, Any]:
        own: dict[str, Any] = {
            "weight": self._weight,
            "chance": self._chance.bit_generator.state,
        }
        if self._feedback is not None:
            own["error"] = self._feedback.error.copy()
        return super().snapshot() | own

    def restore(self, saved: dict[str, Any]) -> None:
        super().restore(saved)
        self._weight = saved["weight"]
        self._chance.bit_generator.state = saved["chance"]
        if self._feedback is not None:
            fill_vectors({"error": self._feedback.error}, saved)

    def _conclude(self) -> Vector:
        self._quiesce()
        self._coming.cancel()
        self._centre.close(self._replica.parameters()[:0])
        consensus = self._copy_of_weights()
        consensus *= self._weight
        self._world.all_reduce(consensus)
        return consensus
