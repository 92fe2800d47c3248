"""Weights that are not finite must not reach the others."""

from __future__ import annotations

from paceline.errors import TrainingError
from paceline.vectors import Vector, is_finite


def check_sound(weights: Vector, rank: int) -> None:
    """Refuse to share weights that no step can mend."""
    if not is_finite(weights):
        raise TrainingError(
            f"the weights of rank {rank} are not finite, so they are not shared with the others; "
            "lower the learning rate, or go on from a checkpoint"
        )
