"""Numbers as text for the bar, the lines and the final table."""

import math
from dataclasses import dataclass

from paceline.observe.history import EpochRecord

MISSING = "-"
WORTH_REPORTING = 0.05
"""The share of an epoch's time spent waiting for data above which it is reported."""


def format_loss(loss: float | None) -> str:
    """Write a loss with 4 decimals, or in powers of ten when it has exploded."""
    if loss is None:
        return MISSING
    return f"{loss:.4f}" if not abs(loss) >= 1e5 else f"{loss:.3e}"


def format_percent(fraction: float | None, decimals: int = 2) -> str:
    """Write a fraction in percent: 0.98714 becomes 98.71 %."""
    return MISSING if fraction is None else f"{100 * fraction:.{decimals}f} %"


def format_count(count: float | None) -> str:
    """Write a whole number in groups of three digits: 12345.2 becomes 12,345."""
    return MISSING if count is None or not math.isfinite(count) else f"{round(count):,}"


def format_duration(seconds: float | None) -> str:
    """Write seconds as hours, minutes and seconds, rounded up: 82.1 becomes 0:01:23."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


@dataclass
class Course:
    """How far a run has to go: its epochs, and the samples of each if they are known."""

    epochs: int
    samples_per_epoch: int | None

    def remaining_s(self, epoch: int, samples: int, samples_per_s: float) -> float | None:
        """Return the seconds to the end of the run at this pace, None when nobody can know."""
        if self.samples_per_epoch is None or not 0 < samples_per_s < math.inf:
            return None
        left = (self.epochs - epoch + 1) * self.samples_per_epoch - samples
        return max(0, left) / samples_per_s

    def describe(self, epoch: int, samples: int, loss: float | None, samples_per_s: float) -> str:
        """Write where the run stands within an epoch."""
        done = format_count(samples)
        if self.samples_per_epoch is not None:
            done += f"/{format_count(self.samples_per_epoch)}"
        left = format_duration(self.remaining_s(epoch, samples, samples_per_s))
        rate = format_count(samples_per_s)
        return f"{done}  loss {format_loss(loss)}  {rate} samples/s  {left} left"

    def learn_length(self, record: EpochRecord) -> None:
        """Take a finished epoch's samples as the length of the next, if none was known.

        The length of a generator shows only when it has ended once.
        """
        if self.samples_per_epoch is None:
            self.samples_per_epoch = record.samples

    def describe_epoch(self, record: EpochRecord) -> str:
        """Write the outcome of a finished epoch in one line."""
        parts = [
            f"epoch {record.epoch}/{self.epochs}",
            f"train loss {format_loss(record.train_loss)}",
        ]
        if record.val_loss is not None:
            parts.append(f"val loss {format_loss(record.val_loss)}")
        if record.val_accuracy is not None:
            parts.append(f"val accuracy {format_percent(record.val_accuracy)}")
        for name, value in record.metrics.items():
            parts.append(f"{name.replace('_', ' ')} {format_loss(value)}")
        parts += [f"{format_count(record.samples_per_s)} samples/s", f"{record.seconds:.1f} s"]
        waiting = record.time.shares()["data"]
        if waiting >= WORTH_REPORTING:
            parts.append(f"{format_percent(waiting, decimals=0)} waiting for data")
        return "  ".join(parts)
