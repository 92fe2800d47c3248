"""A user's folder for `paceline train`: models, data good and bad, and what is said of bad ones.

The model is in plain numpy: a rank with torch takes 2 s longer to start, and few tests are of it.
"""

import numpy as np

SOURCE = """
import os, sys
import numpy as np
from paceline.frameworks.numpy import NumpyReplica


def build(outputs=3):
    weight = np.random.normal(size=(4, outputs)).astype(np.float32)
    return NumpyReplica({"weight": weight}, loss_and_gradients, 0.05, 0.9, count_correct)


def flat():
    return NumpyReplica({"weight": np.zeros((784, 10), np.float32)}, loss_and_gradients, 0.05)


def loss_and_gradients(arrays, batch):
    inputs = batch.inputs.reshape(len(batch.inputs), -1)
    scores = inputs @ arrays["weight"]
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    rows = np.arange(len(likely))
    loss = -np.log(likely[rows, batch.targets] + 1e-12).mean()
    likely[rows, batch.targets] -= 1
    return loss, {"weight": inputs.T @ likely / len(likely)}


def count_correct(arrays, batch):
    return int(((batch.inputs @ arrays["weight"]).argmax(axis=1) == batch.targets).sum())


def uneven():
    return build(3 + int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)))


def clumsy():
    raise KeyError("no such thing")


def leaver():
    if os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
        sys.exit(4)
    return build()


def noise(part):
    x = np.random.normal(size=(40, 4)).astype(np.float32)
    print("first", x[0, 0], flush=True)
    return x, x[:, :3].argmax(1)
"""

NETWORK = """
import torch
from torch import nn


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def samples(part):
    generator = torch.Generator().manual_seed(len(part))
    x = torch.randn(200, 4, generator=generator)
    return torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
"""
"""The same kind of model in torch."""

BAD_DATA = {
    "missing file": (["mine.py:build", "nowhere.npz"], "nowhere.npz"),
    "torn npz": (["mine.py:build", "torn.npz"], "torn.npz"),
    "nan": (
        ["mine.py:build", "nan.npz", "--max-rejected", "0"],
        r"loss is nan at step \d+.*, for samples",
    ),
    "labels": (["network.py:build", "labels.npz"], "is out of range: the model has 3 outputs"),
    "run dir": (
        ["mine.py:build", "train.npz", "--run-dir", "train.npz/x"],
        "train.npz/x cannot be written",
    ),
    "model": (["mine.py:nobody", "train.npz"], "build"),
    "model file": (["nowhere.py:build", "train.npz"], "nowhere.py"),
    "loss": (["network.py:build", "train.npz", "--loss", "cross"], "loss is 'cross'"),
    "data dir": (["mnist", "--data-dir", "."], "MNIST is not in"),
    "ignored": (["mine.py:build", "train.npz", "--data-dir", "."], "data.dir is read for mnist"),
    "optimizer": (["mnist", "--optimizer", "adm"], "Did you mean 'adam'"),
    "no data": (["mine.py:build"], "data.train is missing"),
    "setting": (["mnist", "--optimizer", "adam", "--momentum", "1"], "no setting momentum"),
}
"""What a rank finds wrong: the words after `paceline train`, and what the message says."""

WRONG_SETTINGS = {
    "batch size": (["mnist", "--batch-size", "0"], "data.batch_size is 0"),
    "rule": (["mnist", "--rule", "bps"], "Did you mean 'bsp'"),
    "key": (["mnist", "--set", "dat.x=1"], "dat is not a setting; did you mean data"),
    "run file": (["nowhere.yaml"], "nowhere.yaml does not exist"),
}
"""What is found before any rank starts."""


def write_project(folder):
    """A user's folder: models, and data files good and bad."""
    (folder / "mine.py").write_text(SOURCE)
    (folder / "network.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    y = x[:, :3].argmax(axis=1)
    np.savez(folder / "train.npz", x=x, y=y)
    np.savez(folder / "val.npz", x=x[:50], y=y[:50])
    np.savez(folder / "tiny.npz", x=x[:1], y=y[:1])
    np.savez(folder / "labels.npz", x=x, y=y + 7)
    poisoned = x.copy()
    poisoned[33] = np.nan
    np.savez(folder / "nan.npz", x=poisoned, y=y)
    whole = (folder / "train.npz").read_bytes()
    (folder / "torn.npz").write_bytes(whole[: len(whole) // 2])
    return folder
