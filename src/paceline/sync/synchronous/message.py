"""A vector and its head, summed over all ranks in one all-reduce."""

from __future__ import annotations

from paceline.comm import World
from paceline.comm.allreduce.coded import VectorAllreduce
from paceline.core.vectors import ALIGNMENT_BYTES, Vector
from paceline.observe import Stopwatch
from paceline.sync.interface import Contribution, StepHead, StepOutcome


class StepMessage:
    """Memory for a vector and its head.

    The head is a `StepHead` and as many flags as were asked for. So an exchange costs one
    all-reduce, and every rank leaves it knowing the same. A coded vector travels by itself after
    the head. A barrier before it all tells waiting for slower ranks from communication.
    """

    def __init__(self, world: World, vector: Vector, flags: int = 0, mark: int = 0) -> None:
        """For vectors of this size and type; `mark` tells exchanges of one program apart."""
        self._world, self._mark = world, mark
        line = ALIGNMENT_BYTES // vector.dtype.itemsize
        head = -(-(StepHead.SIZE + flags) // line) * line  # the vector starts on a cache line
        self._all = world.make_buffer(head + vector.size, vector.dtype)
        self.flags: Vector = self._all[StepHead.SIZE : StepHead.SIZE + flags]
        self.vector: Vector = self._all[head:]
        self.bytes_sent = 0
        """By this rank, where an all-reduce sends no more than it must."""

    def sum_over_ranks(
        self,
        mine: Contribution,
        watch: Stopwatch,
        size: int | None = None,
        coded: VectorAllreduce | None = None,
        save_only: bool = False,
    ) -> StepOutcome:
        """Sum flags and vector (or its first `size` elements) over all ranks, in place.

        A rank with `save_only` came only to save: then the sum is not used.
        """
        StepHead.write(self._all, mine, self._mark, save_only)
        vector = self.vector[:size]
        watch.lap("compute")
        self._world.barrier()
        watch.lap("wait")
        head = self._all.size - self.vector.size
        self._sum(self._all[: head if coded else head + vector.size])
        StepHead.check(self._all, self._mark, self._world.size)
        outcome = StepHead.read(self._all)
        if coded and outcome.deferred:
            return outcome
        if coded and outcome.weight:
            self.bytes_sent += coded.all_reduce(vector)
        elif coded:  # nobody gave anything: what rounding left behind waits for the next vector
            vector[:] = 0
        return outcome

    def close(self) -> None:
        """Give the memory back; views of it stay valid."""
        self._world.drop_buffer(self._all)

    def _sum(self, sent: Vector) -> None:
        self._world.all_reduce(sent)
        others = self._world.size - 1
        self.bytes_sent += 2 * others * sent.nbytes // self._world.size
