"""GoogLeNet: 22 layers with few parameters, so arithmetic weighs most."""

from __future__ import annotations

import torch
from torch import nn

from paceline.models.weights import start_by_he

_STAGES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
"""Inception modules 3a-b, 4a-e and 5a-b: channels as in the columns of the paper's table 1."""


class Inception(nn.Module):
    """Four branches on the same input, their channels side by side."""

    def __init__(self, inputs: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        one, before_three, three, before_five, five, after_pool = channels
        self.branches = nn.ModuleList(
            [
                _convolve(inputs, one, 1),
                nn.Sequential(
                    _convolve(inputs, before_three, 1), _convolve(before_three, three, 3)
                ),
                nn.Sequential(_convolve(inputs, before_five, 1), _convolve(before_five, five, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, padding=1), _convolve(inputs, after_pool, 1)),
            ]
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(images) for branch in self.branches], dim=1)


def googlenet(classes: int = 1000, dropout: float = 0.4) -> nn.Module:
    """Images (n, 3, 224, 224) to logits; 6,998,552 parameters with 1000 classes.

    Szegedy et al. 2014, Going Deeper with Convolutions, arXiv:1409.4842, without the two auxiliary
    classifiers.
    """
    parts: list[nn.Module] = [
        _convolve(3, 64, 7, stride=2),
        _pool(),
        nn.LocalResponseNorm(5),
        _convolve(64, 64, 1),
        _convolve(64, 192, 3),
        nn.LocalResponseNorm(5),
    ]
    inputs = 192
    for stage in _STAGES:
        parts.append(_pool())
        for channels in stage:
            parts.append(Inception(inputs, channels))
            one, _, three, _, five, after_pool = channels
            inputs = one + three + five + after_pool
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout)]
    return start_by_he(nn.Sequential(*parts, nn.Linear(inputs, classes)))


def _convolve(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2)
    return nn.Sequential(convolution, nn.ReLU(inplace=True))


def _pool() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)
