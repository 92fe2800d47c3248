"""The base classes of all sections of the settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Strict(BaseModel):
    """Refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @classmethod
    def refuse_truth(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false as numbers: to Python they are 1 and 0."""
        kinds = set(_kinds(cls.model_fields[str(info.field_name)].annotation))
        if bool in kinds or not kinds & {int, float}:
            return value
        if isinstance(value, bool):
            raise ValueError("a number")
        if isinstance(value, tuple | list) and any(isinstance(item, bool) for item in value):
            raise ValueError("numbers")
        return value


class Section(Strict):
    """Refuses unknown keys, and true and false as numbers in any field."""

    @field_validator("*", mode="before")
    @classmethod
    def check_truth(cls, value: object, info: ValidationInfo) -> object:
        return cls.refuse_truth(value, info)


def _kinds(annotation: object) -> Iterator[object]:
    """Every type that an annotation names, also within others."""
    yield annotation
    for inner in get_args(annotation):
        yield from _kinds(inner)
