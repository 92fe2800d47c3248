"""VGG: nothing but 3 x 3 convolutions, many of them, and three large dense layers."""

from __future__ import annotations

from torch import nn

from paceline.errors import ConfigError
from paceline.models.weights import start_by_he

_STAGES = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
"""Layers with weights in all, and convolutions before each pooling."""
_CHANNELS = (64, 128, 256, 512, 512)


def vgg(classes: int = 1000, layers: int = 16, dropout: float = 0.5) -> nn.Module:
    """Images (n, 3, 224, 224) to logits; with 16 layers and 1000 classes 138,357,544 parameters.

    Simonyan and Zisserman 2014, Very Deep Convolutional Networks for Large-Scale Image
    Recognition, arXiv:1409.1556: 11, 13, 16 or 19 layers (A, B, D, E).
    """
    if layers not in _STAGES:
        raise ConfigError(f"VGG with {layers} layers is unknown, expected one of {[*_STAGES]}")
    parts: list[nn.Module] = []
    inputs = 3
    for convolutions, channels in zip(_STAGES[layers], _CHANNELS, strict=True):
        for _ in range(convolutions):
            parts += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = channels
        parts.append(nn.MaxPool2d(2))
    return start_by_he(nn.Sequential(*parts, nn.Flatten(), *_classifier(classes, dropout)))


def _classifier(classes: int, dropout: float) -> list[nn.Module]:
    parts: list[nn.Module] = []
    for inputs in (512 * 7 * 7, 4096):
        parts += [nn.Linear(inputs, 4096), nn.ReLU(inplace=True), nn.Dropout(dropout)]
    return [*parts, nn.Linear(4096, classes)]
