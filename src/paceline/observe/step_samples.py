"""Where the time of single steps went on one rank: a sample that stays small in a long run."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.observe.history import TimeSplit
from paceline.observe.queue_clock import QueueClock
from paceline.observe.stopwatch import Stopwatch

MOST = 256
"""Samples that are kept; when there are twice as many, every other one is dropped."""
_SCATTER, _SPAN = 2_654_435_769, 1 << 32
"""Chosen steps are spread evenly without a period: work that rotates over the ranks has one."""


@dataclass(frozen=True)
class StepTime:
    """Where the time of a step went, and for how long of its compute the thread had no core."""

    compute: float
    wait: float
    communication: float
    data: float
    queued: float

    @classmethod
    def since(cls, before: StepTime, split: TimeSplit, queued: float) -> StepTime:
        return cls(
            split.compute - before.compute,
            split.wait - before.wait,
            split.communication - before.communication,
            split.data - before.data,
            queued - before.queued,
        )

    def row(self, steps: int) -> list[float]:
        """Per step; the queue is that of one step alone."""
        parts = (self.compute, self.wait, self.communication, self.data)
        return [*(part / steps for part in parts), self.queued]


class StepSamples:
    """Samples of a rank's steps; `note` is called after each and costs less than a microsecond.

    Ranks that exchange together sample the same exchanges, so that they can be compared one by one.
    An asynchronous rank has nobody to be compared with step by step, and keeps means over equally
    many steps.
    """

    def __init__(self, watch: Stopwatch, asynchronous: bool = False) -> None:
        self._watch, self._asynchronous = watch, asynchronous
        self._queue = QueueClock()
        self._kept: dict[int, StepTime] = {}
        self._mark: StepTime | None = None
        self._stride = 1
        self.count = 0
        """Exchanges, or steps of an asynchronous rank."""
        self.saved_s = 0.0
        """Seconds in which this rank stopped to save."""

    def begin(self) -> None:
        """Steps follow; what came since the last one, as a validation, belongs to none."""
        if self._asynchronous or self._is_chosen(self.count + 1):
            self._set_mark()

    def note(self) -> None:
        """A step is done."""
        self.count += 1
        self._watch.queue = None
        if self._asynchronous:
            if self.count % self._stride == 0:
                self._keep()
                self._set_mark()
            return
        if self._mark is not None:
            self._keep()
            self._mark = None
        if self._is_chosen(self.count + 1):
            self._set_mark()

    def leave_out(self, seconds: float, saving: bool = False) -> None:
        """The last `seconds` were no part of a step; the watch had them as communication if this
        rank was `saving`, and as compute if not."""
        self.saved_s += seconds if saving else 0.0
        if (mark := self._mark) is not None:
            compute, communication = (0.0, seconds) if saving else (seconds, 0.0)
            self._mark = StepTime(
                mark.compute + compute,
                mark.wait,
                mark.communication + communication,
                mark.data,
                mark.queued,
            )

    def rows(self, most: int = MOST) -> list[list[float]]:
        """At most so many samples, oldest first: compute, wait, communication, data, queued."""
        found = [
            time.row(self._stride if self._asynchronous else 1) for time in self._kept.values()
        ]
        every = -(-len(found) // most) if found else 1
        return found[::every]

    def _set_mark(self) -> None:
        """A sample begins here; the queue is looked at in its first step only, as that costs."""
        zero = StepTime(0.0, 0.0, 0.0, 0.0, 0.0)
        self._mark = StepTime.since(zero, self._watch.total(), self._watch.queued)
        self._watch.look_at(self._queue)

    def _keep(self) -> None:
        if self._mark is not None:
            now = self._watch.total()
            self._kept[self.count] = StepTime.since(self._mark, now, self._watch.queued)
        if len(self._kept) >= 2 * MOST:
            self._stride *= 2
            if self._asynchronous:
                self._merge()
            else:
                self._kept = {at: time for at, time in self._kept.items() if self._is_chosen(at)}

    def _merge(self) -> None:
        """Two neighbours become one."""
        ends, times = list(self._kept)[1::2], list(self._kept.values())
        pairs = zip(times[::2], times[1::2], strict=False)
        self._kept = {
            end: StepTime(
                one.compute + two.compute,
                one.wait + two.wait,
                one.communication + two.communication,
                one.data + two.data,
                (one.queued + two.queued) / 2,
            )
            for end, (one, two) in zip(ends, pairs, strict=True)
        }

    def _is_chosen(self, number: int) -> bool:
        return (number * _SCATTER % _SPAN) * self._stride < _SPAN
