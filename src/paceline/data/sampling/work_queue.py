"""Batches for asynchronous workers: numbered through the run, and granted a few at a time.

Asynchronous workers have no fixed share of an epoch: the slowest would be left with a long tail.
Instead each asks for numbers, and a fast one gets more of them. The ledger grants each number once,
so every sample comes exactly once per epoch.
"""

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import lru_cache
from threading import Condition

import numpy as np

from paceline.data.batch import Batch
from paceline.data.sampling.epochs import depth_ahead
from paceline.data.sampling.partial_epoch import EpochRemainder
from paceline.data.sampling.prefetch import prefetched
from paceline.data.sampling.shards import StepPlan, order_of, plan_steps
from paceline.data.sampling.split import Balance, EpochSplit, split_epoch
from paceline.data.sources import Source
from paceline.data.streams import Stream
from paceline.errors import DataError

ORDERS_KEPT = 2


class BatchGrants:
    """The numbers of batches that this worker may take, granted a few at a time.

    They serve one iterator of `granted_batches`, in the order in which they were granted.

    >>> grants = BatchGrants()
    >>> grants.grant(4, 6)
    >>> grants.take(), grants.outstanding
    (4, 2)
    """

    def __init__(self) -> None:
        # Reentrant: the garbage collector may close an iterator, which drops its grants, while
        # the same thread is in one of these methods.
        self._changed = Condition()
        self._granted: deque[range] = deque()
        self._open: deque[range] = deque()
        self._outstanding = 0
        self._ended = False

    @property
    def outstanding(self) -> int:
        """How many batches are granted and not yet handed over to training."""
        with self._changed:
            return self._outstanding

    def numbers(self) -> list[int]:
        """The batches that are granted and not yet handed over to training."""
        with self._changed:
            return [number for numbers in self._open for number in numbers]

    def grant(self, first: int, last: int) -> None:
        """Allow the batches from `first` up to, but not including, `last`."""
        if not 0 <= first <= last:
            raise AssertionError(f"batches {first} to {last} granted, expected 0 <= first <= last")
        with self._changed:
            if self._ended:
                raise AssertionError(f"batches {first} to {last} granted after the end")
            if first < last:
                self._granted.append(range(first, last))
                self._open.append(range(first, last))
                self._outstanding += last - first
                self._changed.notify_all()

    def end(self) -> None:
        """No more will come. What is granted is still served, and waiting threads wake up."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def drop(self) -> None:
        """End, and forget what is granted, even batches that are prepared already."""
        with self._changed:
            self._granted.clear()
            self._open.clear()
            self._outstanding = 0
            self.end()

    def take(self) -> int | None:
        """The next number, to prepare its batch; waits for a grant. None: no more will come."""
        with self._changed:
            while not self._granted:
                if self._ended:
                    return None
                self._changed.wait()
            numbers = self._granted.popleft()
            if len(numbers) > 1:
                self._granted.appendleft(numbers[1:])
            return numbers[0]

    def expect(self, wait: bool) -> bool:
        """Whether a batch will come; while that is open, wait for a grant, or refuse to."""
        with self._changed:
            while not self._outstanding and not self._ended:
                if not wait:
                    raise AssertionError(
                        "a batch is asked for, none is granted and no thread prepares any: "
                        "this would wait forever"
                    )
                self._changed.wait()
            return self._outstanding > 0

    def hand_over(self) -> bool:
        """Count a batch as handed over to training. False: it was dropped meanwhile."""
        with self._changed:
            if not self._outstanding:
                return False
            self._outstanding -= 1
            numbers = self._open.popleft()
            if len(numbers) > 1:
                self._open.appendleft(numbers[1:])
            return True


def granted_batches(
    source: Source | Stream,
    grants: BatchGrants,
    *,
    batch_size: int,
    workers: int = 1,
    balance: Balance | None = None,
    seed: int = 0,
    shuffle: bool = True,
    prefetch: int | None = None,
    loaders: int = 1,
) -> Iterator[Batch]:
    """The batches whose numbers are in `grants`, until it ends.

    With n batches per epoch, number t is batch t % n of epoch t // n, in the order that one rank
    alone would take; with a `balance`, batches of equal cost, as so many workers would take them.
    `prefetch` and `loaders` are as in `training_batches`. With a thread, asking for a batch waits
    for a grant; without one it is an error to ask when none is outstanding.
    Closing the iterator drops the grants.
    """
    numbered, plan = _number(source, batch_size, workers)
    depth = depth_ahead(numbered, prefetch, loaders)
    per_epoch = batches_per_epoch(source, batch_size, workers, balance)

    # Numbers granted around the end of an epoch may go back and forth between two of them.
    @lru_cache(maxsize=ORDERS_KEPT)
    def order_in(epoch: int) -> np.ndarray:
        return order_of(numbered, seed, epoch, shuffle)

    @lru_cache(maxsize=ORDERS_KEPT)
    def split_in(epoch: int) -> EpochSplit:
        whole = EpochRemainder(workers, batch_size)
        return split_epoch(numbered, whole, balance, seed=seed, epoch=epoch, shuffle=shuffle)

    def shares() -> Iterator[np.ndarray]:
        while (number := grants.take()) is not None:
            epoch, turn = divmod(number, per_epoch)
            if balance is not None:
                yield order_in(epoch)[split_in(epoch).share(*divmod(turn, workers))]
            else:
                begin, end = plan.bounds(turn, rank=0)
                yield order_in(epoch)[begin:end]

    batches = prefetched(shares, depth, loaders, numbered.take)
    return _hand_over(batches, grants, wait=depth > 0)


def batches_per_epoch(
    source: Source | Stream, batch_size: int, workers: int = 1, balance: Balance | None = None
) -> int:
    """How many numbers make an epoch: the last batch may be smaller than the others, or larger.

    >>> from paceline.data import ArraySource
    >>> batches_per_epoch(ArraySource(np.zeros(10)), batch_size=4)
    3
    """
    numbered, plan = _number(source, batch_size, workers)
    if balance is None:
        return len(plan)
    return workers * len(plan_steps(len(numbered), workers, batch_size))


def _number(source: Source | Stream, batch_size: int, workers: int) -> tuple[Source, StepPlan]:
    if isinstance(source, Stream):
        raise DataError(
            "a stream cannot be split among asynchronous workers; give data with a length, or "
            "use a synchronous rule (bsp, average, diloco)"
        )
    plan = plan_steps(len(source), 1, batch_size)
    # As with synchronous rules: on several ranks a last sample alone joins the batch before it.
    return source, replace(plan, least=min(2, batch_size)) if workers > 1 else plan


def _hand_over(batches: Iterator[Batch], grants: BatchGrants, wait: bool) -> Iterator[Batch]:
    assert isinstance(batches, Generator), "so it can be closed"
    try:
        # Training waits here and not for the thread: an interrupt need not wait for a thread that
        # itself waits for a grant.
        while grants.expect(wait):
            batch = next(batches, None)
            if batch is None or not grants.hand_over():
                return
            yield batch
            del batch
    finally:
        # First the grants: the thread may wait for one, and closing waits for the thread.
        grants.drop()
        batches.close()
