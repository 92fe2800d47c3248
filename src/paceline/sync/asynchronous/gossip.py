"""The exchange of rules without a centre: a worker pushes to a random peer now and then."""

from __future__ import annotations

import numpy as np

from paceline.comm import ANY_RANK, Pending, World, wait_until
from paceline.comm.wire import ErrorFeedback, make_codec
from paceline.core.trees import Tree
from paceline.core.vectors import Vector, fill_vectors
from paceline.frameworks.replica import VectorModel
from paceline.observe import Stopwatch
from paceline.rules import GossipRule
from paceline.sync.asynchronous.base import AsynchronousExchange
from paceline.sync.interface import Settled
from paceline.sync.parameter_server.make import open_ledger
from paceline.sync.parameter_server.packets import Packet
from paceline.sync.parameter_server.spec import message_tags
from paceline.sync.replicas import check_finite_weights
from paceline.sync.settings import ExchangeContext

_LEAST_WEIGHT = 2.0**-100
"""A worker that gave away more than this without getting any keeps the rest."""


class GossipExchange(AsynchronousExchange):
    """Pushes weights to random peers and merges what comes from them.

    A push is posted and left to travel, and a receive is always posted, so nobody waits for
    anybody. At the end all ranks share how many pushes they have sent, and take in all that
    are still under way.
    """

    report_every = 10

    def __init__(
        self, world: World, model: VectorModel, rule: GossipRule, context: ExchangeContext
    ) -> None:
        weights = model.parameters()
        ledger, roles = open_ledger(world, weights, context)
        super().__init__(world, model, ledger, roles)
        self._rule, self._tag = rule, message_tags(context.exchange_id)[2]
        self._weight = 1.0 / world.size
        self._chance = np.random.default_rng([context.seed, context.exchange_id, world.rank])
        codec = make_codec(context.settings.wire, weights.dtype)
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
        alone = self._world.size == 1  # of an elastic world
        return not alone and self._weight > _LEAST_WEIGHT and self._has_left()

    def _push(self, peer: int) -> None:
        self._weight = self._rule.split_weight(self._weight)
        self._outbox.note(self._weight)
        weights = self._model.parameters()
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
            weights = self._model.parameters()
            if self._codec is None:
                got = self._inbox.vector(weights.size, weights.dtype)
            else:
                assert self._got is not None
                got = self._got
                self._codec.decode(self._inbox.payload[: self._nbytes], got)
            self._weight = self._rule.merge(weights, self._weight, got, self._inbox.noted())
            self._model.accept_parameters()
            self._received += 1
            self._coming = self._post()

    def _quiesce(self) -> None:
        """Take in all that is still under way."""
        sent_to = self._sent_to.copy()
        self._world.all_reduce(sent_to)
        due = int(sent_to[self._world.rank])
        wait_until(lambda: self._has_left() and self._received == due)
        super()._quiesce()

    def snapshot(self) -> Tree:
        own: Tree = {
            "weight": self._weight,
            "chance": self._chance.bit_generator.state,
        }
        if self._feedback is not None:
            own["error"] = self._feedback.error.copy()
        return super().snapshot() | own

    def restore(self, saved: Tree, same_ranks: bool) -> None:
        super().restore(saved, same_ranks)
        if not same_ranks:
            return
        self._weight = saved["weight"]
        self._chance.bit_generator.state = saved["chance"]
        if self._feedback is not None:
            fill_vectors({"error": self._feedback.error}, saved)

    def settle(self, left: World) -> Settled:
        """Those that are left have all the weight; what was under way was a copy."""
        settled = super().settle(left)
        self._weight /= sum(left.allgather_values(self._weight))
        return settled

    def agree_on_weights(self) -> Vector | None:
        """The weighted mean of all replicas; none may be under way."""
        return self._final if self._final is not None else self._consensus()

    def _conclude(self) -> Vector:
        self._quiesce()
        self._coming.cancel()
        self._centre.close(self._model.parameters()[:0])
        return self._consensus()

    def _consensus(self) -> Vector:
        consensus = self._copy_of_weights()
        consensus *= self._weight
        self._world.all_reduce(consensus)
        return consensus
