"""Reasons to stop before the last epoch, as settings."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from paceline.config.section import Section

METRICS = ("train_loss", "val_loss", "val_accuracy")
"""Those that every run may have."""


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
