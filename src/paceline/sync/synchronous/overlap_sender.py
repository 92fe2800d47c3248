"""Sending parts of the gradient between nodes while backward still makes the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import NamedTuple

from paceline.core.chunks import Span
from paceline.core.vectors import Layout
from paceline.errors import TrainingError

BUCKET_BYTES = 16 * 1024 * 1024
"""Long enough for a network's full rate, short enough that the last one does not wait for long."""


class Bucket(NamedTuple):
    """Neighbouring parameters whose gradients travel together."""

    piece: Span
    entries: tuple[int, ...]


def cut_buckets(layout: Layout, nbytes: int | None = None) -> list[Bucket]:
    """The vector from its end to its beginning, as backward fills it, in parts of about `nbytes`,
    by default BUCKET_BYTES.

    >>> layout = Layout.of([(name, (16,), "float32") for name in "abc"])
    >>> [bucket.entries for bucket in cut_buckets(layout, 100)]
    [(1, 2), (0,)]
    """
    return list(_cut(layout, (nbytes or BUCKET_BYTES) // layout.dtype.itemsize))


def _cut(layout: Layout, longest: int) -> Iterator[Bucket]:
    stop = layout.size
    members: list[int] = []
    for at in reversed(range(len(layout.entries))):
        members.insert(0, at)
        start = layout.entries[at].offset
        if stop - start >= longest or at == 0:
            yield Bucket(slice(start, stop), tuple(members))
            stop, members = start, []


class OverlapSender:
    """Takes buckets to the other nodes one by one, always in the same order, from a thread.

    A bucket is handed in when all its gradients have arrived, if that was announced, and in any
    case before the step.
    """

    def __init__(
        self, buckets: Sequence[Bucket], take: Callable[[int], None], threaded: bool
    ) -> None:
        """`take(number)` sums a bucket over all ranks; it may wait for them."""
        self._buckets, self._take = buckets, take
        self._bucket_of = {at: n for n, bucket in enumerate(buckets) for at in bucket.entries}
        self._jobs: SimpleQueue[int | None] = SimpleQueue()
        self._returns = threading.Semaphore(0)
        self._problem: BaseException | None = None
        self._missing: list[int] | None = None
        self._handed_in = self._back = 0
        self._thread = threading.Thread(target=self._work, name="courier", daemon=True)
        if threaded:
            self._thread.start()

    def last_backward(self) -> None:
        """The gradients that come now are the last ones before the step."""
        if self._thread.is_alive():
            self._missing = [len(bucket.entries) for bucket in self._buckets]

    def gradient_ready(self, entry: int) -> None:
        """A gradient is in its place."""
        if self._missing is None:
            return
        number = self._bucket_of[entry]
        if number < self._handed_in:
            raise TrainingError(
                "gradients came once more before the step, and the first had been sent already; "
                "omit overlap from keep_pace(..., exchange={...}) if a step has several backwards"
            )
        self._missing[number] -= 1
        while self._handed_in < len(self._buckets) and not self._missing[self._handed_in]:
            self._hand_in()

    def hand_in_rest(self) -> None:
        """All gradients are there that will come."""
        self._missing = None
        if self._thread.is_alive():
            while self._handed_in < len(self._buckets):
                self._hand_in()

    def wait_for(self, number: int) -> None:
        """Return when this bucket is summed; all have been handed in."""
        threaded = self._thread.is_alive()
        while self._back <= number:
            if threaded:
                self._returns.acquire()
            else:
                self._take(self._back)
            self._back += 1
        if self._problem is not None:
            raise self._problem

    def finish(self) -> None:
        """Wait until all buckets are summed, and begin anew."""
        self.wait_for(len(self._buckets) - 1)
        self._handed_in = self._back = 0

    def close(self) -> None:
        """End the thread."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()

    def _hand_in(self) -> None:
        self._jobs.put(self._handed_in)
        self._handed_in += 1

    def _work(self) -> None:
        while (number := self._jobs.get()) is not None:
            try:
                if self._problem is None:
                    self._take(number)
            except BaseException as error:  # told to the thread that trains
                self._problem = error
            self._returns.release()
