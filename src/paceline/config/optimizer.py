"""The section `optimizer:`, by the name and arguments of a class."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, field_validator

from paceline.config.section import Section
from paceline.config.setting import Flag, Values


class OptimizerConfig(Section):
    """The optimizer's name; every other key is an argument of it (lr, momentum, ...)."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Flag("--optimizer"), Values("name of a class, in any case")] = "sgd"
    """Optimizer: `sgd`, `adam`, `adamw` or any other of torch.optim.

    Every other key of the section is an argument of it: `optimizer.weight_decay`,
    `optimizer.betas`, ... With Keras or JAX it is one of theirs."""
    lr: Annotated[float | None, Flag("--lr")] = Field(None, gt=0)
    """Learning rate (default: 0.05 for sgd, else the optimizer's own).

    It is never scaled by the number of ranks."""
    momentum: Annotated[float | None, Flag("--momentum")] = None
    """Momentum, for optimizers that have one (default: 0.9 for sgd)."""

    @field_validator("*", mode="before")
    @classmethod
    def read_number(cls, value: object) -> object:
        return as_number(value)

    def settings(self) -> dict[str, object]:
        """Name and arguments, with useful defaults for plain SGD."""
        given = {key: as_number(value) for key, value in self.model_dump(exclude_none=True).items()}
        return {"lr": 0.05, "momentum": 0.9, **given} if self.name.lower() == "sgd" else given


def as_number(value: object) -> object:
    """The number that was meant by a text: YAML 1.1 reads 1e-3 as one."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
