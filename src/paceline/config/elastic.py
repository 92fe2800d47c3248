"""The section `elastic:`, what becomes of a run whose ranks are lost."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from paceline.config.section import Section
from paceline.config.setting import Flag


class ElasticConfig(Section):
    """What becomes of a run whose ranks are lost."""

    enabled: Annotated[bool, Flag("--elastic")] = False
    """Go on with the ranks that are left when others are lost.

    The section itself turns it on: `elastic: true`, or `elastic: {min: 2}`. It needs an MPI that
    outlives its ranks (Open MPI 5): see [reliability.md](reliability.md)."""
    min: Annotated[int, Flag("--min-ranks")] = Field(1, ge=1)
    """Save and exit with code 75 when fewer ranks than this are left."""

    @model_validator(mode="before")
    @classmethod
    def turn_on(cls, value: object) -> object:
        """Naming the section means to use it."""
        if isinstance(value, bool):
            return {"enabled": value}
        if isinstance(value, dict) and value and "enabled" not in value:
            return {**value, "enabled": True}
        return value
