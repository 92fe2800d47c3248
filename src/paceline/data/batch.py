"""A batch: inputs, targets, the number of samples, and which they are."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core.chunks import length, split_evenly
from paceline.core.nests import leaves, map_leaves
from paceline.errors import ConfigError, DataError

SHOWN = 3


@dataclass(slots=True)
class Batch:
    """Some samples: arrays, tensors or nests of them, whose leading axis counts the samples.

    `targets` is None if the data has none; `indices` are the samples' positions in the source.
    """

    inputs: Any
    targets: Any
    samples: int
    indices: np.ndarray | None = None

    def split(self, parts: int) -> list["Batch"]:
        """Cut into at most `parts` non-empty, nearly equal batches, which are views of this one."""
        if parts < 1:
            raise ConfigError(f"a batch cannot be split into {parts} parts; ask for 1 or more")
        parts = min(parts, self.samples)
        if parts <= 1:
            return [self]
        return [self._cut(piece) for piece in split_evenly(self.samples, parts)]

    def where(self) -> str:
        """Name the samples in a few words, for error messages."""
        bad = self._nonfinite()
        if self.indices is None:
            told = f", {len(bad)} of which are not finite" if len(bad) else ""
            return f"{self.samples} samples at unknown positions{told}"
        told = f", with NaN or infinity in {_listed(self.indices[bad])}" if len(bad) else ""
        return f"{_listed(self.indices)}{told}"

    def _nonfinite(self) -> np.ndarray:
        """Which samples, counted from 0, hold numbers that are not finite, as far as we can see."""
        bad = np.zeros(self.samples, bool)
        for leaf in (*leaves(self.inputs), *leaves(self.targets)):
            with suppress(TypeError, ValueError, RuntimeError):  # neither numbers nor on the host
                finite = np.isfinite(np.asarray(leaf))
                bad |= ~finite.reshape(self.samples, -1).all(axis=1)
        return np.flatnonzero(bad)

    def _cut(self, piece: slice) -> "Batch":
        def cut(leaf: Any) -> Any:
            if leaf is None:
                return None
            found = _leading_length(leaf)
            if found != self.samples:
                raise DataError(
                    f"a batch of {self.samples} samples cannot be split: one of its arrays has "
                    f"leading length {found}. Let the first axis count samples, or do not "
                    "accumulate gradients"
                )
            return leaf[piece]

        return Batch(
            inputs=map_leaves(cut, self.inputs),
            targets=map_leaves(cut, self.targets),
            samples=length(piece),
            indices=None if self.indices is None else self.indices[piece],
        )


def _listed(indices: np.ndarray) -> str:
    shown = ", ".join(str(index) for index in indices[:SHOWN])
    rest = f", ... ({len(indices)} in all)" if len(indices) > SHOWN else ""
    return f"sample{'s' * (len(indices) > 1)} {shown}{rest}"


def _leading_length(leaf: Any) -> int | None:
    try:
        return len(leaf)
    except TypeError:
        return None
