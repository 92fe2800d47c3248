"""A small network in plain numpy: ranks start in a second, and a run is over in a few."""

from __future__ import annotations

import numpy as np

from paceline.frameworks.numpy import NumpyReplica

HIDDEN, CLASSES = 32, 10


def build() -> NumpyReplica:
    """784 inputs, one hidden layer of ReLUs, softmax."""
    chance = np.random.default_rng(1)
    arrays = {
        "first": (chance.normal(size=(784, HIDDEN)) / 28).astype(np.float32),
        "second": (chance.normal(size=(HIDDEN, CLASSES)) / HIDDEN**0.5).astype(np.float32),
    }
    return NumpyReplica(arrays, _loss_and_gradients, 0.05, 0.0, _count_correct)


def _forward(arrays, batch):
    pixels = batch.inputs.reshape(len(batch.inputs), -1)
    hidden = np.maximum(pixels @ arrays["first"], 0)
    return pixels, hidden, hidden @ arrays["second"]


def _loss_and_gradients(arrays, batch):
    pixels, hidden, scores = _forward(arrays, batch)
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(chances))
    loss = -np.log(chances[rows, batch.targets] + 1e-12).mean()
    chances[rows, batch.targets] -= 1
    chances /= len(chances)
    back = (chances @ arrays["second"].T) * (hidden > 0)
    return loss, {"first": pixels.T @ back, "second": hidden.T @ chances}


def _count_correct(arrays, batch):
    return int((_forward(arrays, batch)[2].argmax(axis=1) == batch.targets).sum())
