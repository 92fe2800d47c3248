"""Trains on data that is bad on rank 1 alone: FOLDER, and HOW it is bad, one after the other.

The script goes on after each of them but the last: so no rank may be left waiting for another.
"""

import os
import sys
from pathlib import Path

import numpy as np
from support.numpy_network import build

import paceline
from paceline.errors import DataError


def write(how):
    """The data of this rank, in the folder where it is."""
    x = np.arange(4000, dtype=np.float32).reshape(1000, 4) / 4000
    y = np.arange(1000) % 2
    if world.rank == 1 and how == "other":
        x[999] += 1
    if world.rank == 1 and how == "short":
        x, y = x[:900], y[:900]
    np.savez("data.npz", x=x, y=y)
    np.save("x.npy", x)
    np.save("y.npy", y)
    if world.rank == 1 and how == "missing":
        Path("data.npz").unlink()
    if world.rank == 1 and how == "damaged":
        os.truncate("data.npz", 5000)


class Cut(paceline.Callback):
    def on_batch_end(self, trainer, step, logs):
        if world.rank == 1 and step == 3:
            os.truncate("x.npy", 200)


def train(how):
    write(how)
    paceline.Trainer(
        lambda: build(4, 8, lr=0.01),
        "x.npy,y.npy" if how == "cut" else "data.npz",
        epochs=50,
        data={"batch_size": 10},
        run_dir=str(folder / f"run-{how}"),
        progress="off",
        callbacks=[Cut()] if how == "cut" else [],
    ).fit()


folder, (*first, last) = Path(sys.argv[1]), sys.argv[2:]
world = paceline.init()
here = folder / f"node{world.rank}"  # as if each rank had disks of its own
here.mkdir()
os.chdir(here)
for how in first:
    try:
        train(how)
    except DataError as error:
        world.barrier()
        print(f"CAUGHT {world.rank} {how}: {error}\n", end="", flush=True)
train(last)
