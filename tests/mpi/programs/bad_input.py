"""Trains on data that is bad on rank 1 alone: HOW it is bad, and a FOLDER to work in.

"caught" is a script that goes on after the error: then no rank may be left waiting for another. The
file "bad" in the folder is as old as the fault.
"""

import os
import sys
from pathlib import Path

import numpy as np
from numpy_network import build

import paceline
from paceline.errors import DataError

how, folder = sys.argv[1], Path(sys.argv[2])
world = paceline.init()
here = folder / f"node{world.rank}"  # as if each rank had disks of its own
here.mkdir()
os.chdir(here)
x = np.arange(4000, dtype=np.float32).reshape(1000, 4) / 4000
y = np.arange(1000) % 2
if world.rank == 1 and how == "other":
    x[999] += 1
if world.rank == 1 and how == "short":
    x, y = x[:900], y[:900]
np.savez("data.npz", x=x, y=y)
np.save("x.npy", x)
np.save("y.npy", y)
if world.rank == 1 and how in ("missing", "caught"):
    Path("data.npz").unlink()
if world.rank == 1 and how == "damaged":
    os.truncate("data.npz", 5000)


class Cut(paceline.Callback):
    def on_batch_end(self, trainer, step, logs):
        if world.rank == 1 and step == 3:
            os.truncate("x.npy", 200)
            (folder / "bad").touch()


data = "x.npy,y.npy" if how == "cut" else "data.npz"
trainer = paceline.Trainer(
    lambda: build(4, 8, lr=0.01),
    data,
    epochs=50,
    data={"batch_size": 10},
    run_dir=str(folder / "run"),
    progress="off",
    callbacks=[Cut()] if how == "cut" else [],
)
if how != "cut":
    (folder / "bad").touch()
try:
    trainer.fit()
except DataError as error:
    if how != "caught":
        raise
    world.barrier()
    print("CAUGHT", world.rank, error, flush=True)
