"""Initial weights for deep networks."""

from __future__ import annotations

from torch import nn

_DENSE_STD = 0.01


def start_by_he(network: nn.Module) -> nn.Module:
    """Draw weights so that activations keep their size from layer to layer; biases are zero.

    With torch's own they shrink by half in every layer, and VGG's first layers would never move.
    He et al. 2015, Delving Deep into Rectifiers, arXiv:1502.01852. Dense layers begin smaller,
    so that no class is favoured at the start.
    """
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
        elif isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=_DENSE_STD)
        if isinstance(part, nn.Conv2d | nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
    return network
