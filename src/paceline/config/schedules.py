"""The section `schedule:`, pure functions from progress in epochs to a factor of the rate."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from paceline.config.section import Strict
from paceline.config.setting import Flag


class Constant(Strict):
    """The rate as it is, after a linear rise from 0 over `warmup` epochs."""

    name: Annotated[Literal["constant"], Flag("--schedule")] = "constant"
    """Learning rate over time.

    `step` multiplies it by `gamma` now and then; `cosine` follows half a cosine down to `floor` at
    the last epoch."""
    warmup: Annotated[float, Flag("--warmup", "EPOCHS")] = Field(0.0, ge=0)
    """Epochs over which the learning rate rises linearly from 0."""

    # Not "*": pydantic allows no such validator on the name, which discriminates the schedules.
    @field_validator("warmup", "every", "at", "gamma", "floor", mode="before", check_fields=False)
    @classmethod
    def check_truth(cls, value: object, info: ValidationInfo) -> object:
        return cls.refuse_truth(value, info)

    def factor(self, done: float, total: int) -> float:
        """What to multiply the rate by after `done` of `total` epochs.

        >>> Constant(warmup=2).factor(0.5, 10)
        0.25
        """
        shape = self._shape(max(0.0, done - self.warmup), max(1e-9, total - self.warmup))
        return shape if done >= self.warmup else shape * done / self.warmup

    def _shape(self, done: float, total: float) -> float:
        return 1.0

    @property
    def moves(self) -> bool:
        """Whether the rate ever changes."""
        return self.warmup > 0 or type(self) is not Constant


class Step(Constant):
    """Multiply by `gamma` every `every` epochs, or after each of the epochs in `at`.

    Both count from the end of the warm-up.

    >>> Step(every=3, gamma=0.5).factor(6.0, 10)
    0.25
    >>> Step(at=[2, 7], gamma=0.5).factor(6.0, 10)
    0.5
    """

    name: Literal["step"] = "step"  # type: ignore[assignment]
    every: float = Field(10.0, gt=0)
    """With `step`: epochs between two changes, counted from the end of the warm-up."""
    at: tuple[float, ...] | None = None
    """With `step`, instead of `every`: the epochs after which the rate changes."""
    gamma: float = Field(0.1, gt=0, le=1)
    """With `step`: the factor of each change."""

    @model_validator(mode="after")
    def _check_one(self) -> Step:
        if self.at is not None and self.every != type(self).model_fields["every"].default:
            raise ValueError("every or at, not both")
        return self

    def _shape(self, done: float, total: float) -> float:
        if self.at is not None:
            return float(self.gamma ** sum(done >= epoch for epoch in self.at))
        return float(self.gamma ** math.floor(done / self.every))


class Cosine(Constant):
    """Half a cosine from 1 down to `floor` at the last epoch. Loshchilov 2017, arXiv:1608.03983.

    >>> Cosine().factor(5.0, 10)
    0.5
    """

    name: Literal["cosine"] = "cosine"  # type: ignore[assignment]
    floor: float = Field(0.0, ge=0, le=1)
    """With `cosine`: the factor at the last epoch."""

    def _shape(self, done: float, total: float) -> float:
        wave = 0.5 * (1 + math.cos(math.pi * min(1.0, done / total)))
        return round(self.floor + (1 - self.floor) * wave, 12)


Schedule = Constant | Step | Cosine
