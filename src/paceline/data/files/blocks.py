"""Samples that are best read in blocks: whole files, or parts of them."""

import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

import numpy as np

from paceline.data.batch import Batch
from paceline.data.files.keys import Keys
from paceline.data.files.reader import Column
from paceline.data.sampling.shards import epoch_order, windowed_order

WINDOW_BYTES = 64_000_000
"""How much is shuffled at a time, and kept in memory for it, by default."""


class BlockSource(ABC):
    """A Source whose samples lie in numbered blocks, one after the other.

    A subclass sets `name`, `columns` and `keys`, calls `_lay_out`, and reads blocks. The order of
    an epoch keeps samples of one block together; where nothing is gained by that, `in_blocks` is
    False, and all samples are shuffled.
    """

    cheap = False
    in_blocks = True
    name: str
    columns: tuple[Column, ...]
    keys: Keys

    def _lay_out(self, lengths: list[int], window: int | None) -> None:
        """The samples of each block, and how many are shuffled at a time, if not the default."""
        self._edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.window = window or max(1, WINDOW_BYTES // self.sample_bytes)

    @abstractmethod
    def _read(self, number: int, rows: np.ndarray) -> list[np.ndarray]:
        """Samples of one block, by their positions in it, of each column."""

    def __len__(self) -> int:
        return int(self._edges[-1])

    @property
    def sample_bytes(self) -> int:
        """Of one sample in memory."""
        return max(1, sum(column.sample_bytes for column in self.columns))

    @property
    def order_facts(self) -> str | None:
        """What the order of an epoch depends on beside the seed and the number of samples."""
        if not self.in_blocks or self.window >= len(self):
            return None
        cut = zlib.crc32(self._edges.tobytes())
        return f"windows of {self.window} samples in {len(self._edges) - 1} blocks ({cut:08x})"

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The samples shuffled so that those of a block stay close together."""
        if self.order_facts is None:
            return epoch_order(len(self), seed, epoch)
        return windowed_order(self._edges, self.window, seed, epoch)

    def take(self, indices: np.ndarray) -> Batch:
        indices = np.ascontiguousarray(indices, dtype=np.int64)
        taken = [np.empty((len(indices), *col.shape), col.dtype) for col in self.columns]
        numbers = np.searchsorted(self._edges, indices, side="right") - 1
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            rows = indices[places] - self._edges[number]
            for whole, part in zip(taken, self._read(number, rows), strict=True):
                whole[places] = part
        inputs, targets = self.keys.arrange(taken)
        return Batch(inputs, targets, len(indices), indices)


Arrays = list[np.ndarray]


class _Slot:
    def __init__(self) -> None:
        self.lock = Lock()
        self.content: Arrays | None = None
        self.size_bytes = 0


class BlockCache:
    """Blocks by number; the least recently used are dropped first. One block always fits.

    Threads that want the same block wait for the one that reads it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._lock = Lock()
        self._slots: OrderedDict[int, _Slot] = OrderedDict()

    def __reduce__(self) -> tuple[object, ...]:
        return BlockCache, (self.limit_bytes,)  # another process begins with an empty one

    def get(self, number: int, read: Callable[[], Arrays]) -> Arrays:
        """The block of this number, read if it is not in memory."""
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
            if self._slots.get(number) is not slot:  # dropped before it was read
                return
            slot.size_bytes = size_bytes
            self.held_bytes += size_bytes
            while self.held_bytes > self.limit_bytes and len(self._slots) > 1:
                self.held_bytes -= self._slots.popitem(last=False)[1].size_bytes
