"""Waiting for something that has to be looked at: MPI tells nobody that a message has come."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from paceline.comm.world import Pending

LONGEST_S = 0.002
"""Longest sleep between two looks: waking up costs 40 us on a virtual machine, 2 % of a core so."""


class Backoff:
    """Wait for something that is looked at again and again, without burning a core.

    First a few yields of the processor, then sleeps that grow to `longest_s`.
    """

    def __init__(
        self, longest_s: float = LONGEST_S, yields: int = 50, shortest_s: float = 20e-6
    ) -> None:
        self._longest_s, self._yields = longest_s, yields
        self._shortest_s = min(shortest_s, longest_s)
        self._yielded, self._sleep_s = 0, self._shortest_s

    def pause(self) -> None:
        """Let some time pass before the next look."""
        if self._yielded < self._yields:
            self._yielded += 1
            os.sched_yield()
            return
        time.sleep(self._sleep_s)
        self._sleep_s = min(1.5 * self._sleep_s, self._longest_s)

    def reset(self) -> None:
        """Something happened: look often again."""
        self._yielded, self._sleep_s = 0, self._shortest_s


def wait_until(done: Callable[[], bool], longest_s: float = LONGEST_S) -> None:
    """Return when `done()` is true."""
    patience = Backoff(longest_s)
    while not done():
        patience.pause()


def wait_for_any(pendings: Sequence[Pending], longest_s: float = LONGEST_S) -> int:
    """The index of a message that is done, the first of them if several are."""
    if not pendings:
        raise ValueError("nothing to wait for")
    patience = Backoff(longest_s)
    while True:
        for at, pending in enumerate(pendings):
            if pending.done():
                return at
        patience.pause()
