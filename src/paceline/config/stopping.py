"""The sections `stop:`, reasons to stop before the last epoch, and `elastic:`, reasons not to."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from paceline.config.section import Section
from paceline.config.setting import Flag, Values

METRICS = ("train_loss", "val_loss", "val_accuracy")
"""Those that every run may have."""


class StopConfig(Section):
    """Reasons to stop early."""

    patience: Annotated[int | None, Flag("--patience")] = Field(None, ge=1)
    """Stop after this many validations in a row without a lower `val_loss` (default: never)."""
    target: Annotated[
        str | None, Flag("--target"), Values("a metric, `>=`, `<=`, `>` or `<`, and a number")
    ] = None
    """Stop when this is reached, for example `val_accuracy>=0.97`.

    Metrics are `train_loss`, `val_loss`, `val_accuracy`, and `val_NAME` for a metric of a compiled
    Keras model."""

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
    """Metric, comparison and number.

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
        f"stop.target is {text!r}, expected METRIC>=NUMBER or METRIC<=NUMBER with one of these "
        f"metrics: {', '.join(METRICS)}, or val_ and the name of a Keras model's metric"
    )


SAVE_EVERY = "1m"
"""How often an elastic run saves that may have to start again from its checkpoint on disk, unless
the user says something else."""


class ElasticConfig(Section):
    """What becomes of a run whose ranks are lost, leave or join."""

    enabled: Annotated[bool, Flag("--elastic")] = False
    """Go on with the ranks that are left when others are lost.

    The section itself turns it on: `elastic: true`, or `elastic: {min: 2}`. It needs an MPI that
    outlives its ranks (Open MPI 5): see [reliability.md](reliability.md)."""
    min: Annotated[int, Flag("--min-ranks")] = Field(1, ge=1)
    """Save and exit with code 75 when fewer ranks than this are left."""
    max: Annotated[int | None, Flag("--max-ranks")] = Field(None, ge=1)
    """Let no more ranks than this join (default: no limit)."""
    replace: Annotated[bool, Flag("--replace")] = False
    """Start a new rank in the place of one that is lost."""

    @model_validator(mode="before")
    @classmethod
    def turn_on(cls, value: object) -> object:
        """Naming the section means to use it."""
        if isinstance(value, bool):
            return {"enabled": value}
        if isinstance(value, dict) and value and "enabled" not in value:
            return {**value, "enabled": True}
        return value

    @model_validator(mode="after")
    def check_bounds(self) -> ElasticConfig:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max is {self.max}, and min is {self.min}; expected max >= min")
        return self
