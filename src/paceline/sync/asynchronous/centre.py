"""The exchange of rules with a centre: now and then, with the centre alone."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from paceline.comm import World
from paceline.core.trees import Tree
from paceline.core.vectors import Vector, copy_vectors, fill_vectors
from paceline.errors import RanksLost
from paceline.frameworks.replica import RoundsWeights, VectorModel
from paceline.observe import Stopwatch
from paceline.rules import CentreRule, PushTerms
from paceline.sync.asynchronous.base import AsynchronousExchange
from paceline.sync.interface import Settled
from paceline.sync.parameter_server.ledger import LedgerReply, WorkerReport
from paceline.sync.parameter_server.make import open_centre
from paceline.sync.parameter_server.worker_port import BufferedPort, DistanceProbe, InPlacePort
from paceline.sync.replicas import check_finite_weights, copy_buffers
from paceline.sync.settings import ExchangeContext


class CentreExchange(AsynchronousExchange):
    """Exchanges with the centre when the rule says so.

    With `overlap` an exchange travels in a thread while the worker goes on, and moves the replica
    at the end of the first step after it has come back, at the latest before the next exchange.
    """

    def __init__(
        self, world: World, model: VectorModel, rule: CentreRule, context: ExchangeContext
    ) -> None:
        weights = model.parameters()
        workers = world.size - (context.settings.servers or 0)
        if workers > 0:  # else the roles say it better
            rule.check_workers(workers)
        centre, roles = open_centre(world, rule, weights, context)
        super().__init__(world, model, centre, roles)
        self._to_centre, self._rule = centre, rule
        self._rounds = isinstance(model, RoundsWeights) and model.stores_rounded
        self._state = rule.init_worker(weights)
        self.report_every = rule.report_every
        self._steps_since_push = 0
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: (
            tuple[WorkerReport, Future[tuple[LedgerReply, float | None, int]]] | None
        ) = None
        if context.settings.overlap and self.trains:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="paceline-exchange")
            self._buffered = BufferedPort(rule, weights, self._state)

    @property
    def bytes_sent(self) -> int:
        return self._centre.bytes_sent

    def abandon(self) -> None:
        super().abandon()  # an exchange that is under way ends with it
        if self._thread is not None:
            self._thread.shutdown()

    def report(self) -> None:
        self._take_back()  # one conversation at a time
        super().report()

    def common_weights(self) -> Vector | None:
        """The result once all have left; before that, the centre as it is now."""
        if self._final is not None:
            return self._final
        self._take_back()
        copy: Vector = np.empty_like(self._model.parameters())
        self._to_centre.read_into(copy)
        return copy

    def _after(self, watch: Stopwatch) -> bool:
        self._steps_since_push += 1
        push, pull = self._rule.due(self._steps_taken)
        back = self._under_way is not None and self._under_way[1].done()
        if not (push or pull):
            if back:
                self._take_back()
                watch.lap("communication")
            return back
        watch.lap("compute")
        self._exchange(push, pull)
        watch.lap("communication")
        return True

    def _before_leaving(self, watch: Stopwatch) -> None:
        """Give the centre the steps since the last push; what comes back is not needed."""
        watch.lap("compute")
        if self._steps_since_push:
            self._exchange(push=True, pull=self._rule.reply_kind == "move")
        self._take_back()
        if self._thread is not None:
            self._thread.shutdown()
        watch.lap("communication")

    def _while_waiting(self) -> None:
        """Nothing more can come."""

    def _quiesce(self) -> None:
        self._take_back()
        super()._quiesce()

    def snapshot(self) -> Tree:
        own = {"since_push": self._steps_since_push, "state": copy_vectors(self._state)}
        return super().snapshot() | own

    def restore(self, saved: Tree, same_ranks: bool) -> None:
        super().restore(saved, same_ranks)
        if same_ranks and self.trains:
            self._steps_since_push = saved["since_push"]
            fill_vectors(self._state, saved["state"])
        else:
            fill_vectors(self._state, self._rule.init_worker(self._model.parameters()))

    def settle(self, left: World) -> Settled:
        """A rank that serves may have to train now: it begins at the centre."""
        settled = super().settle(left)
        assert self.carried is not None
        teachers = [at for at, trains in enumerate(left.allgather_values(self.trains)) if trains]
        if teachers:
            copy_buffers(left, self._model, teachers[0], behind=not self.trains)
        if not self.trains:
            weights = self._model.parameters()
            weights[:] = self.carried.centre
            self._model.accept_parameters()
            self._state = self._rule.init_worker(weights)
        return settled

    def _come_to_rest(self) -> None:
        with suppress(RanksLost):  # one that was under way is finished without this worker
            self._take_back()

    def _conclude(self) -> Vector:
        final = self._copy_of_weights()
        self._to_centre.close(final)
        return final

    def _exchange(self, push: bool, pull: bool) -> None:
        self._take_back()
        workers = len(self.roles.workers)
        terms = self._rule.terms(self._steps_taken, self._steps_since_push, workers)
        if push:
            self._steps_since_push = 0
        weights = self._model.parameters()
        check_finite_weights(weights, self._world.rank)
        report = self._make_report(push, pull)
        if self._thread is None:
            port = InPlacePort(self._rule, weights, self._state)
            self._hear_of(report, *self._travel(report, terms, port))
            self._accept(weights)
        else:
            self._buffered.pack(push, terms)
            travel = self._thread.submit(self._travel, report, terms, self._buffered)
            self._under_way = (report, travel)

    def _travel(
        self, report: WorkerReport, terms: PushTerms, port: InPlacePort | BufferedPort
    ) -> tuple[LedgerReply, float | None, int]:
        """Exchange with the centre: its reply, how far the replica was from it, the bytes sent."""
        before = self._centre.bytes_sent
        if self.on_exchange is None:
            return self._to_centre.push_pull(report, terms, port), None, 0
        measured = DistanceProbe(port, self._rule)
        reply = self._to_centre.push_pull(report, terms, measured)
        return reply, measured.distance(), self._centre.bytes_sent - before

    def _take_back(self) -> None:
        """Wait for the exchange that is under way, if one is, and let it move the replica."""
        if self._under_way is None:
            return
        (report, travel), self._under_way = self._under_way, None
        facts = travel.result()
        weights = self._model.parameters()
        self._buffered.unpack()
        self._accept(weights)
        self._hear_of(report, *facts)

    def _accept(self, weights: Vector) -> None:
        """Let the model follow; where it rounds its weights, that is not the worker's doing."""
        exact = weights.copy() if self._rounds else None
        self._model.accept_parameters()
        if exact is not None:
            rounding = self._model.parameters() - exact
            for vector in self._state.values():
                vector += rounding

    def _hear_of(
        self, report: WorkerReport, reply: LedgerReply, distance: float | None, sent: int
    ) -> None:
        self._hear(reply)
        if report.push:
            self.staleness[reply.staleness] += 1
            self.refused += not reply.scale
        self._note(
            bytes=sent,
            staleness=reply.staleness if report.push else None,
            scale=reply.scale,
            distance=distance,
        )
