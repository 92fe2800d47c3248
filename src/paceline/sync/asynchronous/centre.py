"""The exchange of rules with a centre: now and then, with the centre alone."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from paceline.comm import World
from paceline.core.vectors import Vector, copy_vectors, fill_vectors
from paceline.errors import ConfigError
from paceline.observe import Stopwatch
from paceline.rules import CentreRule, PushTerms
from paceline.sync.asynchronous.base import AsynchronousExchange
from paceline.sync.parameter_server.ledger import LedgerReply, WorkerReport
from paceline.sync.parameter_server.make import open_centre
from paceline.sync.parameter_server.worker_port import BufferedPort, DistanceProbe, InPlacePort
from paceline.sync.replicas import check_finite_weights
from paceline.sync.settings import ExchangeContext


class CentreExchange(AsynchronousExchange):
    """Brings a worker together with the centre when the rule says so.

    With `overlap` an exchange travels in a thread while the worker goes on, and moves the replica
    at the end of the first step after it has come back, at the latest before the next exchange.
    """

    def __init__(
        self, world: World, replica: Any, rule: CentreRule, frame: ExchangeContext
    ) -> None:
        weights = replica.parameters()
        _check_force(rule, world)
        centre, roles = open_centre(
            world, rule, rule.servers, weights, frame.number, frame.batches, frame.saved, frame.fail
        )
        super().__init__(world, replica, centre, roles)
        self._rule = rule
        self._state = rule.init_worker(weights)
        self.report_every = rule.report_every
        self._steps_since_push = 0
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: (
            tuple[WorkerReport, Future[tuple[LedgerReply, float | None, int]]] | None
        ) = None
        if rule.overlap and self.trains:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="paceline-exchange")
            self._parcel = BufferedPort(rule, weights, self._state)

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

    def centre(self) -> Vector | None:
        """The result once all have left; before that, the centre as it is now."""
        if self._final is not None:
            return self._final
        self._take_back()
        copy: Vector = np.empty_like(self._replica.parameters())
        self._centre.read_into(copy)
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
        self._meet(push, pull)
        watch.lap("communication")
        return True

    def _before_leaving(self, watch: Stopwatch) -> None:
        """Give the centre the steps since the last push; what comes back is not needed."""
        watch.lap("compute")
        if self._steps_since_push:
            self._meet(push=True, pull=self._rule.reply_kind == "move")
        self._take_back()
        if self._thread is not None:
            self._thread.shutdown()
        watch.lap("communication")

    def _while_waiting(self) -> None:
        """Nothing more can come."""

    def _quiesce(self) -> None:
        self._take_back()
        super()._quiesce()

    def snapshot(self) -> dict[str, Any]:
        own = {"since_push": self._steps_since_push, "state": copy_vectors(self._state)}
        return super().snapshot() | own

    def restore_shared(self, saved: dict[str, Any]) -> None:
        super().restore_shared(saved)
        fill_vectors(self._state, self._rule.init_worker(self._replica.parameters()))

    def restore(self, saved: dict[str, Any]) -> None:
        super().restore(saved)
        self._steps_since_push = saved["since_push"]
        fill_vectors(self._state, saved["state"])

    def _conclude(self) -> Vector:
        final = self._copy_of_weights()
        self._centre.close(final)
        return final

    def _meet(self, push: bool, pull: bool) -> None:
        self._take_back()
        workers = len(self.roles.workers)
        terms = self._rule.terms(self._steps_taken, self._steps_since_push, workers)
        if push:
            self._steps_since_push = 0
        weights = self._replica.parameters()
        check_finite_weights(weights, self._world.rank)
        report = self._make_report(push, pull)
        if self._thread is None:
            side = InPlacePort(self._rule, weights, self._state)
            self._hear_of(report, *self._travel(report, terms, side))
            self._accept(weights)
        else:
            self._parcel.pack(push, terms)
            travel = self._thread.submit(self._travel, report, terms, self._parcel)
            self._under_way = (report, travel)

    def _travel(
        self, report: WorkerReport, terms: PushTerms, side: InPlacePort | BufferedPort
    ) -> tuple[LedgerReply, float | None, int]:
        """Meet the centre: the news, how far from it the replica was, and the bytes sent."""
        before = self._centre.bytes_sent
        if self.on_exchange is None:
            return self._centre.push_pull(report, terms, side), None, 0
        measured = DistanceProbe(side, self._rule)
        news = self._centre.push_pull(report, terms, measured)
        return news, measured.distance(), self._centre.bytes_sent - before

    def _take_back(self) -> None:
        """Wait for the exchange that is under way, if one is, and let it move the replica."""
        if self._under_way is None:
            return
        (report, travel), self._under_way = self._under_way, None
        facts = travel.result()
        weights = self._replica.parameters()
        self._parcel.unpack()
        self._accept(weights)
        self._hear_of(report, *facts)

    def _accept(self, weights: Vector) -> None:
        """Let the model follow; where it rounds its weights, that is not the worker's doing."""
        exact = weights.copy() if getattr(self._replica, "stores_rounded", False) else None
        self._replica.accept_parameters()
        if exact is not None:
            rounding = self._replica.parameters() - exact
            for vector in self._state.values():
                vector += rounding

    def _hear_of(
        self, report: WorkerReport, news: LedgerReply, distance: float | None, sent: int
    ) -> None:
        self._hear(news)
        if report.push:
            self.staleness[news.staleness] += 1
            self.refused += not news.scale
        self._note(
            bytes=sent,
            staleness=news.staleness if report.push else None,
            scale=news.scale,
            distance=distance,
        )


def _check_force(rule: CentreRule, world: World) -> None:
    workers = world.size - (rule.servers or 0)
    if workers < 1:
        return  # the roles say it better
    force = rule.terms(step=0, steps=1, workers=workers).force
    if force >= 1:
        raise ConfigError(
            f"the elastic force is {force:g} for {workers} worker{'s' * (workers > 1)}, expected "
            "less than 1: replica and centre would only change places; set a lower rule.beta"
        )
