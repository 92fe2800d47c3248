"""The progress clock: an epoch is the training set consumed once by the whole world."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from paceline.core.trees import Tree

_COUNTS = ("step", "samples", "samples_in_epoch")
"""Of which a rank between two exchanges has its own estimate."""


@dataclass
class Clock:
    """Counts what the world has consumed; the same on every rank.

    `samples_per_epoch` is None for a stream until its first epoch has ended.
    """

    samples_per_epoch: int | None = None
    epoch: int = 0
    """Completed epochs."""
    step: int = 0
    """Steps since the start of the run."""
    samples: int = 0
    """Samples since the start of the run."""
    samples_in_epoch: int = 0

    def advance(self, samples: int) -> None:
        """One step of the world on that many samples."""
        self.step += 1
        self.samples += samples
        self.samples_in_epoch += samples

    def catch_up(self, samples: int) -> None:
        """The world was further than was known."""
        self.samples += samples
        self.samples_in_epoch += samples

    def locate(self, samples: int) -> None:
        """One step of this worker, after which the world has consumed that many in all."""
        self.step += 1
        self.place(samples)

    def place(self, samples: int) -> None:
        """The world has consumed that many in all."""
        self.samples = samples
        if self.samples_per_epoch:
            self.epoch, self.samples_in_epoch = divmod(samples, self.samples_per_epoch)

    def end_epoch(self) -> None:
        self.epoch += 1
        self.samples_per_epoch = self.samples_in_epoch
        self.samples_in_epoch = 0

    @property
    def epochs(self) -> float:
        """Progress in epochs, with the fraction of the one that runs where it is known."""
        if not self.samples_per_epoch:
            return float(self.epoch)
        return self.epoch + min(1.0, self.samples_in_epoch / self.samples_per_epoch)

    def snapshot(self) -> Tree:
        """All of it."""
        return asdict(self)

    def counts(self) -> Tree:
        """What other ranks may count differently."""
        return {name: getattr(self, name) for name in _COUNTS}

    def restore(self, saved: Tree) -> None:
        """Go on from what `snapshot` or `counts` gave."""
        for name in asdict(self):
            setattr(self, name, saved.get(name, getattr(self, name)))
