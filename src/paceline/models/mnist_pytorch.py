"""The PyTorch network that mpi_learn's first example trains, of torch's own layers alone."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn


def mnist_pytorch() -> nn.Sequential:
    """Images (n, 28, 28, 1) or (n, 1, 28, 28) to the logits of ten digits; 21,840 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 10, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, kernel_size=5),
        nn.Dropout2d(),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(50, 10),
    )


def save(path: Path, seed: int = 1) -> None:
    """Write the network as a file that `paceline train` and ModelPytorch load."""
    torch.manual_seed(seed)
    torch.save(mnist_pytorch(), path)
