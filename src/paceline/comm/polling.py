"""Waiting by polling: MPI does not notify anybody when a message arrives."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

LONGEST_S = 0.002
"""Longest sleep between two polls: waking up takes 40 us on a virtual machine, so 2 % of a core."""


class Backoff:
    """Pauses between polls that do not keep a core busy.

    First a few yields of the processor, then sleeps that grow up to `longest_s`.
    """

    def __init__(
        self, longest_s: float = LONGEST_S, yields: int = 50, shortest_s: float = 20e-6
    ) -> None:
        self._longest_s, self._yields = longest_s, yields
        self._shortest_s = min(shortest_s, longest_s)
        self._yielded, self._sleep_s = 0, self._shortest_s

    def pause(self) -> None:
        """Yield or sleep before the next poll."""
        if self._yielded < self._yields:
            self._yielded += 1
            os.sched_yield()
            return
        time.sleep(self._sleep_s)
        self._sleep_s = min(1.5 * self._sleep_s, self._longest_s)

    def reset(self) -> None:
        """Start over with yields, after progress was made."""
        self._yielded, self._sleep_s = 0, self._shortest_s


def wait_until(done: Callable[[], bool], longest_s: float = LONGEST_S) -> None:
    """Return when `done()` is true."""
    backoff = Backoff(longest_s)
    while not done():
        backoff.pause()
