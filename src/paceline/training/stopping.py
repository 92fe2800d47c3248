"""When to stop before the last epoch: decided from figures that all ranks share, so all agree."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from pydantic import Field, field_validator

from paceline.training.section import Section

METRICS = ("train_loss", "val_loss", "val_accuracy")
"""Those that every run may have."""
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class StopConfig(Section):
    """Reasons to stop early."""

    patience: int | None = Field(None, ge=1)
    """Validations in a row without a lower val_loss."""
    target: str | None = None
    """For example val_accuracy>=0.97."""

    @field_validator("target")
    @classmethod
    def read_target(cls, value: str | None) -> str | None:
        if value is not None:
            parse_target(value)
        return value

    @property
    def needs_validation(self) -> bool:
        return self.patience is not None or "val_" in (self.target or "")


def parse_target(text: str) -> tuple[str, str, float]:
    """Metric, comparison and bar.

    >>> parse_target("val_accuracy>=0.97")
    ('val_accuracy', '>=', 0.97)
    """
    match = re.fullmatch(r"\s*(\w+)\s*(>=|<=|>|<)\s*([-+.\deE]+)\s*", text)
    try:
        if match and (match[1] in METRICS or match[1].startswith("val_")):
            return match[1], match[2], float(match[3])
    except ValueError:
        pass
    raise ValueError(
        f"stop.target is {text!r}, expected METRIC>=NUMBER or METRIC<=NUMBER "
        f"with a metric of: {', '.join(METRICS)}, or val_ with a metric of a Keras model"
    )


class Stopping:
    """Watches the figures of each epoch and says why to stop, or None."""

    def __init__(self, config: StopConfig) -> None:
        self._config = config
        self._best = float("inf")
        self._waited = 0

    def snapshot(self) -> dict[str, float]:
        """What it has seen so far."""
        return {"best": self._best, "waited": self._waited}

    def restore(self, saved: Mapping[str, float]) -> None:
        """Go on from what `snapshot` gave."""
        self._best, self._waited = saved["best"], int(saved["waited"])

    def reason(self, figures: Mapping[str, float | None]) -> str | None:
        if self._config.target is not None:
            metric, comparison, bar = parse_target(self._config.target)
            value = figures.get(metric)
            if value is not None and _COMPARISONS[comparison](value, bar):
                return f"target reached: {metric} is {value:.4f}, wanted {comparison} {bar:g}"
        loss = figures.get("val_loss")
        if self._config.patience is None or loss is None:
            return None
        self._waited = 0 if loss < self._best else self._waited + 1
        self._best = min(self._best, loss)
        if self._waited >= self._config.patience:
            return f"val_loss has not fallen below {self._best:.4f} for {self._waited} validations"
        return None
