"""AlexNet, in one tower: 61 million parameters, most of them in its dense layers."""

from __future__ import annotations

from torch import nn


def alexnet(classes: int = 1000, dropout: float = 0.5) -> nn.Module:
    """Images (n, 3, 224, 224) to logits; 61,100,840 parameters with 1000 classes.

    Krizhevsky et al. 2012, ImageNet Classification with Deep Convolutional Neural Networks; with
    all channels in one tower, as in Krizhevsky 2014, arXiv:1404.5997, and without the response
    normalisation.
    """
    return nn.Sequential(
        *_convolve(3, 64, 11, stride=4, padding=2),
        nn.MaxPool2d(3, stride=2),
        *_convolve(64, 192, 5, padding=2),
        nn.MaxPool2d(3, stride=2),
        *_convolve(192, 384, 3, padding=1),
        *_convolve(384, 256, 3, padding=1),
        *_convolve(256, 256, 3, padding=1),
        nn.MaxPool2d(3, stride=2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(256 * 6 * 6, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, classes),
    )


def _convolve(inputs: int, outputs: int, size: int, **options: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, size, **options), nn.ReLU(inplace=True)
