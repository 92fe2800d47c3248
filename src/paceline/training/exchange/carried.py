"""Vectors that live in an exchange, copied into a checkpoint and written back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.vectors import Vector


def copy_vectors(live: Mapping[str, Vector]) -> dict[str, Vector]:
    """Their values now."""
    return {name: vector.copy() for name, vector in live.items()}


def fill_vectors(live: Mapping[str, Vector], saved: Mapping[str, Any]) -> None:
    """Write them back; of ranks that are divided otherwise now, what they had does not fit."""
    for name, vector in live.items():
        if name in saved and saved[name].shape == vector.shape:
            vector[:] = saved[name]
