"""ResNet-50: blocks that learn what to add to their input, so that many layers can be trained."""

from __future__ import annotations

from itertools import chain

import torch
from torch import nn

from paceline.models.weights import start_by_he

_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
"""Blocks and inner channels of the stages conv2 to conv5, in the 50-layer column of table 1."""
_WIDENING = 4


class Bottleneck(nn.Module):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1, whose result is added to the input.

    The second convolution halves the image, as in Goyal et al. 2017, arXiv:1706.02677; the first
    one did so at first, and lost three quarters of what it was given.
    """

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        outputs = _WIDENING * inner
        self.residual = nn.Sequential(
            *_convolve(inputs, inner, 1),
            nn.ReLU(inplace=True),
            *_convolve(inner, inner, 3, stride),
            nn.ReLU(inplace=True),
            *_convolve(inner, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Sequential(*(() if same else _convolve(inputs, outputs, 1, stride)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.residual(images) + self.shortcut(images))


def resnet50(classes: int = 1000) -> nn.Module:
    """Images (n, 3, 224, 224) to logits; 25,557,032 parameters with 1000 classes.

    He et al. 2015, Deep Residual Learning for Image Recognition, arXiv:1512.03385. Images of other
    sizes work as well: their last maps are averaged.
    """
    widths = [64, *(_WIDENING * inner for _, inner in _STAGES)]
    stages = (
        _stage(inputs, inner, blocks, stride=1 if place == 0 else 2)
        for place, (inputs, (blocks, inner)) in enumerate(zip(widths, _STAGES, strict=False))
    )
    return start_by_he(
        nn.Sequential(
            *_convolve(3, 64, 7, stride=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
            *chain.from_iterable(stages),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(widths[-1], classes),
        )
    )


def _stage(inputs: int, inner: int, blocks: int, stride: int) -> list[nn.Module]:
    first = Bottleneck(inputs, inner, stride)
    return [first, *(Bottleneck(_WIDENING * inner, inner, 1) for _ in range(blocks - 1))]


def _convolve(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Module, ...]:
    """Without a bias: the normalisation after it has one."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs)
