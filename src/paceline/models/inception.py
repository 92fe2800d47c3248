"""A small net after Inception, for 32 x 32 colour images: convolutions of three sizes at once."""

from __future__ import annotations

import torch
from torch import nn


class ParallelConvolutions(nn.Module):
    """Convolutions of 1 x 1, 3 x 3 and 5 x 5 on the same input, their channels side by side.

    The plain form of the module in Szegedy et al. 2014, Going Deeper with Convolutions,
    arXiv:1409.4842, figure 2a without its pooling.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Conv2d(inputs, outputs, size, padding=size // 2) for size in (1, 3, 5)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(images) for branch in self.branches], dim=1)


def inception(classes: int = 17, dropout: float = 0.5) -> nn.Module:
    """Images (n, 3, 32, 32) to logits; 507,755 parameters with the 17 tags of satellite images.

    Two modules of parallel convolutions, each pooled to half the width, and two dense layers. For
    images that have several tags, train it with the loss binary_crossentropy.
    """
    return nn.Sequential(
        ParallelConvolutions(3, 10),
        nn.MaxPool2d(2),
        nn.ReLU(),
        ParallelConvolutions(30, 10),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(30 * 8 * 8, 256),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(256, classes),
    )
