"""What exchanges of asynchronous rules have in common: they keep count."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable

import numpy as np

from paceline.checkpoint.saver import OpenCheckpoint
from paceline.comm import Backoff, World
from paceline.comm.rank0 import on_rank0
from paceline.core.trees import Tree
from paceline.core.vectors import Vector, copy_vectors, fill_vectors
from paceline.data import BatchGrants
from paceline.frameworks.replica import VectorModel
from paceline.observe import Stopwatch
from paceline.sync.interface import Contribution, Exchange, Settled, StepOutcome
from paceline.sync.parameter_server.ledger import LedgerReply, WorkerReport
from paceline.sync.parameter_server.make import LedgerLink
from paceline.sync.parameter_server.roles import Roles
from paceline.sync.saved import Keep

_LOOK_EVERY_S = 0.02
"""How often a worker that is through asks whether the others are."""


class AsynchronousExchange(Exchange):
    """A worker reports to the ledger as it exchanges, and nobody waits for anybody.

    At the end each worker says that it has left, and all wait for the last; so workers may take
    different numbers of steps, and leave when they like.
    """

    asynchronous = True
    report_every: int
    """Steps between two reports."""

    def __init__(self, world: World, model: VectorModel, centre: LedgerLink, roles: Roles) -> None:
        self._world, self._model, self._centre = world, model, centre
        self.roles, self.workers = roles, roles.workers
        self.trains = world.rank in roles.workers
        """Whether this rank trains."""
        self.ledger_reply = LedgerReply(working=len(roles.workers))
        """What this worker heard last."""
        self.grants = BatchGrants()
        """The batches that it may take."""
        self.batches_wanted = 0
        """How many batches it wants to have in hand; 0 if none are granted."""
        self.on_exchange: Callable[[Tree], None] | None = None
        """Called with the facts of each exchange."""
        self.staleness: Counter[int] = Counter()
        self.exchanges = self.refused = 0
        self._steps_taken = 0
        self._samples = self._loss = self._without_loss = 0.0
        self._batches = 0
        self._stop = self._save = self._quit = False
        self._final: Vector | None = None
        self.workers_world = world.split(int(self.trains))
        """The workers; on a rank that serves, those that do."""
        self._saved, self.quits = 0, False
        """Requests to save that were carried out, and whether all exit after the last."""
        self.on_pause: Callable[[], None] | None = None
        """Called when all workers are to come together to save, between two steps of each."""
        self.on_last: Callable[[], None] | None = None
        """Called on every worker when none trains any more, before the centre is given up."""

    def as_asynchronous(self) -> AsynchronousExchange:
        return self

    def describe(self) -> str:
        """For the user: who does what."""
        return self.roles.describe()

    @abstractmethod
    def _after(self, watch: Stopwatch) -> bool:
        """A step is done: exchange if it is due; whether a report went to the ledger."""

    @abstractmethod
    def _before_leaving(self, watch: Stopwatch) -> None:
        """The last step is done: give what is still to be given."""

    @abstractmethod
    def _while_waiting(self) -> None:
        """This worker has left and others have not."""

    @abstractmethod
    def _conclude(self) -> Vector:
        """All have left, and all come here together: the weights that are the result."""

    @property
    def estimated_samples(self) -> float:
        """Samples of all workers since the last report, if all are as quick as this one."""
        return self._samples * len(self.roles.workers)

    def after_step(self, part: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """Exchange if it is due. A rank that has no batch, and no more, leaves."""
        if not part.samples and not part.more:
            self.leave(watch)
            return StepOutcome(0, 0.0, more=False, stop=self.ledger_reply.stop)
        self._steps_taken += 1
        self._samples += part.samples
        self._loss += part.loss
        self._without_loss += 0.0 if part.weight else part.samples
        self._batches += 1
        before, self._stop = self.ledger_reply.samples, self._stop or part.stop
        self._save, self._quit = self._save or part.save, self._quit or part.quit
        self._notice_losses()
        if not self._after(watch):
            if not (part.stop or part.save or part.quit):
                return None
            self.report()
        return StepOutcome(
            int(self.ledger_reply.samples - before), 1.0, more=True, stop=self.ledger_reply.stop
        )

    def _notice_losses(self) -> None:
        """Raise RanksLost here, where nothing is half done."""
        if self._world.elastic:
            self._world.raise_if_failed()

    def settle(self, left: World) -> Settled:
        """Every worker goes on as it is; batches of those that are lost are granted again."""
        self._come_to_rest()
        self.carried = self._centre.carry_over(left, self._batches)
        counts = self.carried.ledger
        self.ledger_reply = self.ledger_reply._replace(
            samples=counts["samples"], loss=counts["loss"], without_loss=counts["without_loss"]
        )
        return Settled(counts=True)

    def _come_to_rest(self) -> None:
        """Have no exchange under way; ranks were lost."""

    def abandon(self) -> None:
        """This rank has failed: serve nobody any more."""
        self._centre.abandon()

    @property
    def wants_pause(self) -> bool:
        """Whether all workers are to come together to save, and this one has not been there."""
        return self.trains and self.ledger_reply.saves > self._saved

    def pause(
        self, agree: Callable[[], OpenCheckpoint], keep: Callable[[OpenCheckpoint], None]
    ) -> None:
        """Pause together with all workers; while nobody trains, every rank saves what it has.

        The leader opens the checkpoint; `keep` is called with it on every worker.
        """
        self._quiesce()
        # One may know of a later request than others: all must leave knowing the same.
        known = self.workers_world.allgather_values(
            (self.ledger_reply.saves, self.ledger_reply.quit)
        )
        self._saved, self.quits = max(known)
        agreed = on_rank0(self.workers_world, agree)
        if agreed.number is not None:
            self._centre.save(agreed.number)
        keep(agreed)
        self.workers_world.barrier()

    def quit(self) -> None:
        """Leave a run that is to go on later; all workers do."""
        self.grants.drop()
        self._centre.sign_off(quit=True)
        self.workers_world.barrier()

    def on_save(self, keep: Keep) -> None:
        """What this rank holds of the centre goes there when it is saved."""
        self._centre.on_save(keep)

    def _quiesce(self) -> None:
        """Have nothing under way, and wait until nobody has."""
        self.workers_world.barrier()

    def snapshot(self) -> Tree:
        """What this worker must know when the run goes on; the arrays are copies."""
        return {
            "steps": self._steps_taken,
            "samples": self._samples,
            "batches": self._batches,
            "loss": self._loss,
            "without_loss": self._without_loss,
            "grants": self.grants.numbers(),
            "exchanges": self.exchanges,
            "refused": self.refused,
            "staleness": [[age, count] for age, count in self.staleness.items()],
            "residuals": copy_vectors(self._centre.residuals),
        }

    def restore(self, saved: Tree, same_ranks: bool) -> None:
        """The centre is restored already; on other ranks than then workers begin at it."""
        self._steps_taken = saved["steps"]
        if not same_ranks or not self.trains:
            return
        self._samples, self._loss = saved["samples"], saved["loss"]
        self._without_loss, self._batches = saved["without_loss"], saved["batches"]
        self.exchanges, self.refused = saved["exchanges"], saved["refused"]
        self.staleness = Counter(dict(map(tuple, saved["staleness"])))
        fill_vectors(self._centre.residuals, saved["residuals"])

    def close(self) -> None:
        """All have left, and come here together."""
        self.workers_world.free()

    def report(self) -> None:
        """Report to the ledger what was done since the last time."""
        self._hear(self._centre.report(self._make_report()))

    def ask_to_stop(self) -> None:
        """Let all workers stop after the step they are in."""
        self._stop = True
        self.report()

    def ask_to_save(self) -> None:
        """Let all workers come together to save after the step they are in."""
        self._save = True
        self.report()

    def ask_to_quit(self) -> None:
        """Let all workers save and leave after the step they are in."""
        self._quit = True
        self.report()

    def has_batch(self, watch: Stopwatch) -> bool:
        """Whether there is a batch to take; asks for some if none is in hand."""
        if self.ledger_reply.stop or not self.trains:
            return False
        if not self.grants.outstanding:
            self._notice_losses()
            self.report()
            watch.lap("communication")
        return self.grants.outstanding > 0

    def leave(self, watch: Stopwatch, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Train no more, and wait until nobody does; `meanwhile` is called again and again."""
        self.grants.drop()
        if self.trains:
            self._before_leaving(watch)
            self._hear(self._centre.report(self._make_report(left=True)))
            patience = Backoff(_LOOK_EVERY_S, yields=0, shortest_s=0.001)
            while True:
                if self.wants_pause and self.on_pause is not None:
                    self.on_pause()
                if not self.ledger_reply.working:
                    break
                self._while_waiting()
                meanwhile()
                patience.pause()
                self._notice_losses()
                self._hear(self._centre.report(WorkerReport()))
            watch.lap("wait")
            if self.on_last is not None:
                self.on_last()
            self._centre.sign_off()
        self._final = self._conclude()

    def common_weights(self) -> Vector | None:
        """The result once all have left."""
        return self._final

    def exchange_stats(self) -> Tree:
        """This worker's exchanges, and how stale its view of the centre was at each."""
        histogram = {str(age): count for age, count in sorted(self.staleness.items())}
        facts = {"exchanges": self.exchanges, "staleness": histogram}
        return facts | ({"refused": self.refused} if self.refused else {})

    def _make_report(
        self, push: bool = False, pull: bool = False, left: bool = False
    ) -> WorkerReport:
        """What is to be reported; it counts as reported."""
        wanted = 0 if left or self._stop else max(0, self.batches_wanted - self.grants.outstanding)
        wishes = self._save, self._quit
        counts = self._samples, self._loss, self._stop
        done = self._without_loss, self._batches
        report = WorkerReport(*counts, push, pull, wanted, left, *wishes, *done)
        self._samples = self._loss = self._without_loss = 0.0
        self._batches = 0
        self._save = self._quit = False
        return report

    def _hear(self, reply: LedgerReply) -> None:
        self.ledger_reply = reply
        if reply.last > reply.first:
            self.grants.grant(reply.first, reply.last)

    def _note(self, **facts: object) -> None:
        """An exchange has taken place."""
        self.exchanges += 1
        if self.on_exchange is not None:
            self.on_exchange(facts)

    def _copy_of_weights(self) -> Vector:
        return np.array(self._model.parameters())
