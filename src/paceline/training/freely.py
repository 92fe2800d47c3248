"""Epochs of a run whose workers go at their own pace: counted by rank 0, waited for by nobody."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

from paceline.comm import SoloWorld
from paceline.observe import EpochRecord, TimeSplit
from paceline.training.callbacks import Logs
from paceline.training.centre import News
from paceline.training.exchange import FreeExchange, show_centre
from paceline.training.run import ASKED, Run, mean_over_ranks
from paceline.training.start import average_buffers


class EpochCount:
    """Turns the counts of the ledger into epochs.

    >>> count = EpochCount(epochs=3, samples=100)
    >>> list(count.ended(News(samples=120)))
    [1]
    >>> count.take(News(samples=120, loss=240.0), epochs=1)[0][:2]
    (120, 2.0)
    >>> list(count.ended(News(samples=300)))  # the last one ends when all workers have left
    [2]
    """

    def __init__(self, epochs: int, samples: int) -> None:
        self._epochs, self._samples_per_epoch = epochs, samples
        self.told = 0
        """Epochs that `ended` has named."""
        self.samples = self._loss = 0.0
        self._since = perf_counter()

    def ended(self, news: News) -> range:
        """The epochs that are over and have not been named yet."""
        over = min(int(news.samples // self._samples_per_epoch), self._epochs - 1)
        named = range(self.told + 1, over + 1)
        self.told = max(self.told, over)
        return named

    def take(self, news: News, epochs: int) -> list[tuple[int, float | None, float]]:
        """Samples, mean loss and seconds since the last call, divided among so many epochs."""
        samples, loss = int(news.samples - self.samples), news.loss - self._loss
        now = perf_counter()
        seconds, self._since = now - self._since, now
        self.samples, self._loss = news.samples, news.loss
        mean = loss / samples if samples else None
        edges = [samples * epoch // epochs for epoch in range(epochs + 1)]
        return [(last - first, mean, seconds / epochs) for first, last in pairwise(edges)]


@dataclass
class FreeRun(Run):
    """The run of an asynchronous rule.

    Rank 0 leads: between its own steps it sees from the ledger that an epoch is over, validates the
    centre as it is then, and decides whether to stop, while the others go on. Only when all have
    left do the ranks come together, for the last epoch's validation and the result.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.clock.samples_per_epoch is not None, "only data with a length is dealt"
        self.count = EpochCount(self.config.epochs, self.clock.samples_per_epoch)
        self.reason: str | None = None

    def run(self) -> str | None:
        exchange, leads = self._exchange, self.world.rank == 0
        exchange.on_exchange = self._write_exchange
        self.call("on_train_begin")
        if leads:
            self.call("on_epoch_begin", 1)
        hooks = self.step_hooks(perf_counter())
        self.worker.train_freely(self.train, *hooks, self._lead if leads else lambda: None)
        show_centre(self.replica, exchange)
        average_buffers(self.world, self.replica, exchange.works)
        if exchange.works:
            self.events.write("exchanges", step=self.clock.step, **exchange.tally())
        tallies = self.world.share(exchange.tally() if exchange.works else None)
        self.trainer.facts["exchanges"] = tallies
        self._end_last_epoch()
        reason = self.reason or (ASKED if self.worker.stopped else None)
        self.reason = self.world.tell(reason)
        self.end(self.reason)
        return self.reason

    @property
    def _exchange(self) -> FreeExchange:
        assert isinstance(self.exchange, FreeExchange)
        return self.exchange

    def _lead(self) -> None:
        """Give every epoch that is over its record, the latest one a validation."""
        ended = list(self.count.ended(self._exchange.news))
        if not ended:
            return
        due = ended[-1] % self.config.validate_every == 0
        self._tell_of(ended, self.validate(SoloWorld()) if due else {}, self.worker.watch.take())
        self.call("on_epoch_begin", ended[-1] + 1)
        if self.worker.stop_asked:
            self._exchange.ask_to_stop()

    def _end_last_epoch(self) -> None:
        """All ranks together: the record of the last epoch, and of the whole run."""
        logs = self.validate(self.world)
        split = mean_over_ranks(self.world, self.worker.watch.take())
        news = self._exchange.news
        if self.world.rank == 0 and (news.samples > self.count.samples or not self.history):
            ended = list(self.count.ended(news))
            self._tell_of([*ended, self.count.told + 1], logs, split)
        self.history[:] = self.world.tell(list(self.history))

    def _tell_of(self, epochs: list[int], logs: Logs, split: TimeSplit) -> None:
        """Epochs that have ended since the last one told of; the figures are of the latest."""
        parts = self.count.take(self._exchange.news, len(epochs))
        for epoch, part in zip(epochs, parts, strict=True):
            last = epoch == epochs[-1]
            record = self._record(epoch, part, logs if last else {}, split if last else TimeSplit())
            figures = self.note(record)
            self.save_history()
            self.call("on_epoch_end", epoch, figures)
            self.reason = self.reason or self.stopping.reason(figures)
        self.worker.stop_asked |= self.reason is not None

    def _record(
        self, epoch: int, part: tuple[int, float | None, float], logs: Logs, split: TimeSplit
    ) -> EpochRecord:
        samples, train_loss, seconds = part
        return EpochRecord(
            epoch=epoch,
            samples=samples,
            seconds=seconds,
            train_loss=train_loss,
            val_loss=logs.get("val_loss"),
            val_accuracy=logs.get("val_accuracy"),
            learning_rate=self.replica.learning_rate,
            samples_per_s=samples / seconds,
            time=split,
        )

    def _write_exchange(self, facts: dict[str, Any]) -> None:
        if self.config.events_every:
            self.events.write("exchange", step=self.clock.step, **facts)
