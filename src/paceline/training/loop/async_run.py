"""Epochs of an asynchronous run: counted by rank 0, and no rank waits for their end."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

from paceline.comm import SoloWorld, World
from paceline.core.trees import Tree
from paceline.observe import History, TimeSplit
from paceline.sync.asynchronous.base import AsynchronousExchange
from paceline.sync.make import load_common_weights
from paceline.sync.parameter_server.ledger import LedgerReply
from paceline.sync.replicas import average_buffers
from paceline.training.callbacks import Logs
from paceline.training.loop.run import ASKED, TrainingRun, further_figures
from paceline.training.loop.state import RunState
from paceline.training.loop.worker import Worker

_MOST_AT_ONCE = 32
"""Epochs that rank 0 gives records between two of its steps."""

_ASK_EVERY_S = 0.2
"""How often rank 0 asks the ledger while it validates."""


class EpochCount:
    """Turns the counts of the ledger into epochs, each of its own size.

    >>> count = EpochCount(epochs=3, samples=100)
    >>> count.ended(LedgerReply(samples=120))
    [1]
    >>> count.take(LedgerReply(samples=120, loss=240.0), [1])[0][:2]
    (100, 2.0)
    >>> count.ended(LedgerReply(samples=120))
    []
    >>> count.ended(LedgerReply(samples=300))  # the last is recorded when all workers have left
    [2]
    >>> count.rest(LedgerReply(samples=300))
    [2, 3]
    """

    def __init__(self, epochs: int, samples: int) -> None:
        self._epochs, self._size = epochs, samples
        self._recorded = 0
        self._samples = self._loss = self._without_loss = 0.0
        self._since = perf_counter()

    @property
    def recorded(self) -> int:
        """How many epochs."""
        return self._recorded

    def snapshot(self) -> dict[str, float]:
        """What has been recorded so far."""
        since = perf_counter() - self._since
        counts = {"samples": self._samples, "loss": self._loss, "without_loss": self._without_loss}
        return {"recorded": self._recorded, **counts, "since": since}

    def restore(self, saved: dict[str, float]) -> None:
        """Go on from what `snapshot` gave."""
        self._recorded = int(saved["recorded"])
        self._samples, self._loss = saved["samples"], saved["loss"]
        self._without_loss = saved["without_loss"]
        self._since = perf_counter() - saved["since"]

    def recall(self, history: History) -> None:
        """Go on from what was recorded by another rank."""
        self._recorded, self._samples = len(history), float(sum(r.samples for r in history))
        self._loss = sum((r.train_loss or 0.0) * r.samples for r in history)

    def ended(self, reply: LedgerReply, most: int | None = None) -> list[int]:
        """The first `most` epochs that are over and not recorded, without the last of the run."""
        return self._up_to(min(int(reply.samples // self._size), self._epochs - 1))[:most]

    def rest(self, reply: LedgerReply) -> list[int]:
        """The epochs that have begun and are not recorded."""
        return self._up_to(max(1, -(-int(reply.samples) // self._size)))

    def _up_to(self, last: int) -> list[int]:
        return list(range(self._recorded + 1, last + 1))

    def take(self, reply: LedgerReply, epochs: list[int]) -> list[tuple[int, float | None, float]]:
        """Samples, mean loss and seconds of these epochs; what is beyond them is for the next.

        The mean is that of all samples since the last time which had a loss.
        """
        fresh, without_loss = reply.samples - self._samples, reply.without_loss - self._without_loss
        mean = (reply.loss - self._loss) / (fresh - without_loss) if fresh > without_loss else None
        part_without_loss = without_loss / fresh if fresh else 0.0
        edges = [min(reply.samples, epoch * self._size) for epoch in (epochs[0] - 1, *epochs)]
        now = perf_counter()
        seconds, self._since = (now - self._since) / len(epochs), now
        taken = edges[-1] - self._samples
        self._without_loss += part_without_loss * taken
        self._loss += (mean or 0.0) * (1.0 - part_without_loss) * taken
        self._samples = edges[-1]
        self._recorded = epochs[-1]
        return [(int(last - first), mean, seconds) for first, last in pairwise(edges)]


class AsyncRun(TrainingRun):
    """The run of an asynchronous rule.

    Rank 0 leads: between its own steps it sees from the ledger that an epoch is over, validates the
    centre as it is then, and decides whether to stop, while the others go on. Only when all have
    left do the ranks come together, for the last epoch's validation and the result.
    """

    def __init__(self, state: RunState) -> None:
        leads = state.world.rank == 0
        super().__init__(state, Worker(state, is_due=self.is_due if leads else lambda step: False))
        assert self.clock.samples_per_epoch is not None, "only data with a length can be granted"
        self.count = EpochCount(self.config.epochs, self.clock.samples_per_epoch)
        self.reason: str | None = None
        self._asked_at = perf_counter()
        self._epoch_ended = False
        """It is to be saved."""

    def train(self) -> str | None:
        exchange, leads = self._exchange, self.world.rank == 0
        exchange.on_exchange = self._write_exchange
        exchange.on_pause = self._pause
        exchange.on_last = self._save_last
        exchange.on_save(self._keep_server)
        self.begin()
        if leads:
            self.begin_epoch(min(self.count.recorded + 1, self.config.epochs))
        hooks = self.step_hooks(perf_counter())
        self.worker.train_asynchronously(*hooks, self._lead if leads else lambda: None)
        load_common_weights(self.replica, exchange)
        average_buffers(self.world, self.replica, exchange.trains)
        if exchange.trains:
            rest = self.worker.bytes_unrecorded()
            self.events.write(
                "exchanges", step=self.clock.step, bytes=rest, **exchange.exchange_stats()
            )
        mine = exchange.exchange_stats() if exchange.trains else None
        self.state.summary["exchanges"] = self.world.allgather_values(mine)
        self._end_last_epoch()
        reason = self.reason or (ASKED if self.worker.stopped else None)
        self.reason = self.world.bcast_value(reason)
        self.end(self.reason)
        return self.reason

    def settle(self, left: World) -> None:
        """If the leading rank was lost, the first that is left leads, with what is on disk."""
        super().settle(left)
        self._stand_with_workers(left)
        lost = 0 not in left.allgather_values(self.world.rank)
        path = self.state.outputs.run_dir / "history.jsonl"
        if lost and left.rank == 0 and not self.history and path.exists():
            self.history[:] = History.load(path)
            self.count.recall(self.history)

    def _stand_with_workers(self, left: World) -> None:
        """A rank that has served may train now, or lead."""
        steps = left.allgather_values(self.clock.step)
        if not self.exchange.trains:
            self.clock.step = max(steps)
            self.clock.place(int(self._exchange.ledger_reply.samples))

    def snapshot(self) -> Tree:
        return {"reason": self.reason, "count": self.count.snapshot()}

    def restore(self, saved: Tree) -> None:
        self.reason = saved["reason"]
        self.count.restore(saved["count"])

    def _pause(self) -> None:
        """All workers together, each between two of its steps."""
        exchange = self._exchange
        exchange.pause(lambda: self.open_checkpoint(self._saves_on_disk()), self.keep)
        if exchange.quits:
            exchange.quit()
            self.leave(exchange.workers_world)

    def _saves_on_disk(self) -> bool:
        """On rank 0; else where it is due."""
        wanted, self._epoch_ended = self._epoch_ended, False
        return self._exchange.quits or wanted

    def _keep_server(self, number: int, tree: Tree) -> None:
        """In a server's thread, which is told the number alone."""
        node = self.node_saver
        saver = node if node is not None and node.is_open(number) else self.saver
        saver.add(number, f"server-{self.world.rank}", tree)

    @property
    def _exchange(self) -> AsynchronousExchange:
        exchange = self.exchange.as_asynchronous()
        assert exchange is not None
        return exchange

    def _lead(self) -> None:
        """Give the epochs that are over their records, the latest one a validation if one is due.

        Only so many at a time: where epochs are short and others fast, there are always more, and
        this worker must still hear of wishes to save, stop or quit.
        """
        ended = self.count.ended(self._exchange.ledger_reply, _MOST_AT_ONCE)
        if not ended:
            return
        logs: Logs = {}
        if any(epoch % self.config.validate_every == 0 for epoch in ended):
            found = self._validate_alone()
            if found is None:
                return  # it is validated after the pause
            logs = found
        self._record_epochs(ended, logs)
        for epoch in ended:
            self.begin_epoch(epoch + 1)
        if self.state.stop_asked:
            self._exchange.ask_to_stop()
        elif self.saver.each_epoch:
            self._epoch_ended = True
            self._exchange.ask_to_save()

    def _validate_alone(self) -> Logs | None:
        """While the others train: that makes rank 0 no slow worker."""
        self.state.watch.lap("compute")
        before = self.state.watch.total().total
        found = self.validate(SoloWorld(), self._is_wanted)
        self.state.watch.lap("compute")
        self.worker.times.leave_out(self.state.watch.total().total - before)
        return found

    def _is_wanted(self) -> bool:
        """Whether others wait for this worker, to save together."""
        if self.state.stop_requests.reason is not None:
            self._exchange.ask_to_quit()
        elif perf_counter() - self._asked_at > _ASK_EVERY_S:
            self._exchange.report()
            self._asked_at = perf_counter()
        return self._exchange.wants_pause

    def _save_last(self) -> None:
        """A run that saves regularly saves its end, too; no worker trains any more."""
        if self.saver.regular:
            self._exchange.pause(self.open_checkpoint, self.keep)

    def _end_last_epoch(self) -> None:
        """All ranks together: the record of the last epoch, and of the whole run."""
        logs = self.validate_last()
        if self.world.rank == 0:
            rest = self.count.rest(self._exchange.ledger_reply)
            if rest:
                self._record_epochs(rest, logs)
            elif logs:  # the run was stopped at the end of an epoch
                last = self.history[-1]
                last.val_loss, last.val_accuracy = logs["val_loss"], logs["val_accuracy"]
                last.metrics = further_figures(logs)
                self.history.revise_last()
                self.save_history()
        self.history[:] = self.world.bcast_value(list(self.history))

    def _record_epochs(self, epochs: list[int], logs: Logs) -> None:
        """Record epochs that have ended; the figures are those of the latest."""
        parts = self.count.take(self._exchange.ledger_reply, epochs)
        split = self.state.watch.take()
        for epoch, part in zip(epochs, parts, strict=True):
            last = epoch == epochs[-1]
            found, time = (logs, split) if last else ({}, TimeSplit())
            self._set_rate_of(epoch)
            figures = self.note(self.make_record(epoch, *part, found, time))
            self.save_history()
            self.notify("on_epoch_end", epoch, figures)
            self.reason = self.reason or self.stopping.reason(figures)
        self.state.stop_asked |= self.reason is not None

    def _set_rate_of(self, epoch: int) -> None:
        """That of the end of the epoch: others may have taken its last batches."""
        schedule, size = self.config.schedule, self.clock.samples_per_epoch
        assert size is not None
        if schedule.moves:
            last = min(epoch * size, self._exchange.ledger_reply.samples) - 1
            self.replica.scale_learning_rate(schedule.factor(last / size, self.config.epochs))

    def _write_exchange(self, facts: Tree) -> None:
        if self.config.events_every:
            self.events.write("exchange", step=self.clock.step, **facts)
