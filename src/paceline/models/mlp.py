"""Dense layers only: many parameters for little arithmetic, so exchanging them weighs most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(inputs: int = 784, hidden: Sequence[int] = (2048, 2048), classes: int = 10) -> nn.Module:
    """Flattened samples to logits; 784-2048-2048-10 has 5,824,522 parameters."""
    widths = (inputs, *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
