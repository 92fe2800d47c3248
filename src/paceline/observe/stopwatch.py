"""Where a rank's time goes, measured in the training loop itself."""

from time import perf_counter

from paceline.observe.history import TimeSplit
from paceline.observe.queue_clock import QueueClock


class Stopwatch:
    """Divide running time among compute, wait, communication and data.

    The loop calls `lap` after each part of a step, with the name of what it just did; so every
    second between `start` and the last lap falls into exactly one bucket.

    >>> watch = Stopwatch()
    >>> _ = watch.start()
    >>> _ = watch.lap("compute")
    >>> watch.take().compute > 0
    True
    """

    __slots__ = (
        *("_all", "_last", "_queued_at", "_taken", "_times"),
        *("communication", "compute", "data", "laps", "queue", "queued", "wait"),
    )

    def __init__(self) -> None:
        self.laps = 0
        """How many laps there were: it grows while the loop advances."""
        self.compute = self.wait = self.communication = self.data = 0.0
        self._taken, self._times, self._all = TimeSplit(), 0, TimeSplit()
        self.queue: QueueClock | None = None
        """Looked at in each lap, unless it is None."""
        self.queued = self._queued_at = 0.0
        """Seconds of compute in which this thread had no core, while there was a `queue`."""
        self._last = perf_counter()

    def look_at(self, queue: QueueClock) -> None:
        """Look at this clock from now on."""
        self.queue, self._queued_at = queue, queue.read()

    def start(self) -> float:
        """Begin a lap now, dropping the time since the last one; return the clock."""
        self._last = now = perf_counter()
        return now

    def lap(self, bucket: str) -> float:
        """Add the time since the last lap or start to `bucket`; return these seconds."""
        now = perf_counter()
        seconds = now - self._last
        self._last = now
        self.laps += 1
        setattr(self, bucket, getattr(self, bucket) + seconds)
        if self.queue is not None:
            before, self._queued_at = self._queued_at, self.queue.read()
            self.queued += self._queued_at - before if bucket == "compute" else 0.0
        return seconds

    def peek(self) -> TimeSplit:
        """Return the buckets."""
        return TimeSplit(self.compute, self.wait, self.communication, self.data)

    def put_back(self, split: TimeSplit) -> None:
        """Continue from these."""
        self.compute, self.wait = split.compute, split.wait
        self.communication, self.data = split.communication, split.data

    def take(self) -> TimeSplit:
        """Return the buckets and empty them; the current lap continues."""
        split = self.peek()
        self.compute = self.wait = self.communication = self.data = 0.0
        self._times += 1
        self._all += split
        self._taken = split if self._times <= 2 else self._taken + split
        return split

    def total(self) -> TimeSplit:
        """All time so far: it only grows, whoever takes the buckets."""
        return self._all + self.peek()

    def steady(self) -> TimeSplit:
        """All time so far, without what was taken first, which includes start-up; but with it if
        nothing was taken since."""
        return self._taken + self.peek()
