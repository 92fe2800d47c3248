"""Where a worker is in an epoch that may have been interrupted."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from paceline.core.trees import Tree
from paceline.data import Batch, EpochRemainder
from paceline.training.loop.dealing import DealtBatch


class StepUnderWay(NamedTuple):
    """A step whose exchange is not over."""

    batch: Batch | DealtBatch | None
    more: bool
    loss: float | None


@dataclass
class EpochPosition:
    """What a worker has had of the epoch, and what came of it."""

    remainder: EpochRemainder
    taken: int = 0
    """Batches of the remainder that it has trained on."""
    ended: bool = False
    """It has had its last one."""
    loss_sum: float = 0.0
    samples_with_loss: float = 0.0
    """All but those of rejected batches."""
    before_s: float = 0.0
    """Seconds of the epoch before the run was interrupted."""
    began: float = field(default_factory=perf_counter)

    def add(self, samples: int, loss: float | None) -> None:
        """A batch has been trained on; None: it was rejected."""
        self.taken += 1
        self.loss_sum += (loss or 0.0) * samples
        self.samples_with_loss += 0 if loss is None else samples

    def elapsed(self) -> float:
        """Seconds of the epoch so far."""
        return self.before_s + perf_counter() - self.began

    def snapshot(self) -> Tree:
        """This worker's part; the remainder is the same on all ranks."""
        return {
            "taken": self.taken,
            "ended": self.ended,
            "loss_sum": self.loss_sum,
            "samples_with_loss": self.samples_with_loss,
            "seconds": self.elapsed(),
        }
