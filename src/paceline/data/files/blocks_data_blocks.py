"""The blocks of files that were read last, kept in memory within a limit."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

Arrays = list[np.ndarray]


class _Slot:
    def __init__(self) -> None:
        self.lock = Lock()
        self.content: Arrays | None = None
        self.size_bytes = 0


class BlockCache:
    """Blocks by number; those used longest ago leave first. One block always fits.

    Threads that want the same block wait for the one that reads it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._lock = Lock()
        self._slots: OrderedDict[int, _Slot] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockCache, (self.limit_bytes,)  # another process begins with an empty one

    def get(self, number: int, read: Callable[[], Arrays]) -> Arrays:
        """The block of this number, read if it is not at hand."""
        with self._lock:
            slot = self._slots.setdefault(number, _Slot())
            self._slots.move_to_end(number)
        with slot.lock:
            if slot.content is None:
                slot.content = read()
                self._account(number, slot, sum(array.nbytes for array in slot.content))
            return slot.content

    def _account(self, number: int, slot: _Slot, size_bytes: int) -> None:
        with self._lock:
            if self._slots.get(number) is not slot:  # left meanwhile, before it was read
                return
            slot.size_bytes = size_bytes
            self.held_bytes += size_bytes
            while self.held_bytes > self.limit_bytes and len(self._slots) > 1:
                self.held_bytes -= self._slots.popitem(last=False)[1].size_bytes
