"""A linear model of the digits in numpy: its ranks start in a fraction of torch's time.

`paceline train .../digits_model.py:build digits`. Variables make it slow, in seconds for each step:
$SLOW_S until there is a file ./fast, $SLOW_AT_FIRST_S until the run goes on from a checkpoint in
./run.
"""

import os
import time
from pathlib import Path

import numpy as np

from paceline.frameworks.numpy import NumpyReplica

SLOW_S = float(os.environ.get("SLOW_S", "0"))
if not Path("run/checkpoints").is_dir():
    SLOW_S += float(os.environ.get("SLOW_AT_FIRST_S", "0"))
LR = 0.02
"""Small: asynchronous workers stay stable with gradients many steps old."""


def build():
    arrays = {"w": np.zeros((784, 10), np.float32)}
    return NumpyReplica(arrays, loss_and_gradients, LR, count_correct=count_correct)


def loss_and_gradients(arrays, batch):
    if SLOW_S and not Path("fast").exists():
        time.sleep(SLOW_S)
    chances = np.exp(_scores(arrays, batch))
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(chances))
    value = -np.log(chances[rows, batch.targets] + 1e-12).mean()
    chances[rows, batch.targets] -= 1
    return value, {"w": _pixels(batch).T @ chances / len(chances)}


def count_correct(arrays, batch):
    return int((_scores(arrays, batch).argmax(axis=1) == batch.targets).sum())


def _pixels(batch):
    return batch.inputs.reshape(len(batch.inputs), -1)


def _scores(arrays, batch):
    scores = _pixels(batch) @ arrays["w"]
    return scores - scores.max(axis=1, keepdims=True)
