"""Train on lists of files: streamed_files.py FOLDER huge|fail.

`huge`: 20 GB of samples in files that take no room, 640 MB of them on each rank. `fail`: small
files by way of a cache on the node, and again, when rank 1 fails while the cache is used. Rank 0
prints what was seen.
"""

import itertools
import json
import re
import sys
from pathlib import Path

import h5py
import numpy as np

from paceline import Callback, Trainer, init
from paceline.frameworks.numpy import NumpyReplica

SIDE, STEPS = 128, 320
SAMPLE_BYTES = SIDE * SIDE * 4
_numbers = itertools.count()


def write_list(world, folder, name, files, samples, sparse):
    """HDF5 files and their list; what is never written reads as zeros, and takes no room."""
    for number in range(files if world.rank == 0 else 0):
        with h5py.File(folder / f"{name}-{number}.h5", "w") as file:
            shape = (samples, SIDE, SIDE)
            features = file.create_dataset("features", shape, "f4", chunks=(16, SIDE, SIDE))
            labels = file.create_dataset("labels", (samples,), "f4", chunks=(16,))
            if not sparse:
                features[:], labels[:] = 1.0, number
    if world.rank == 0:
        (folder / f"{name}.list").write_text(f"{name}-*.h5\n")
    world.barrier()


def build():
    def loss_and_gradients(arrays, batch):
        means = batch.inputs.reshape(len(batch.inputs), -1).mean(axis=1)
        error = means * arrays["weight"] - batch.targets
        return (error**2).mean(), {"weight": np.array([2 * (error * means).mean()], np.float32)}

    return NumpyReplica({"weight": np.zeros(1, np.float32)}, loss_and_gradients)


class StopEarly(Callback):
    def on_batch_end(self, trainer, step, logs):
        if step >= STEPS:
            trainer.stop()


class Look(Callback):
    """What lies in the cache while the run goes on."""

    def __init__(self, cache, fails):
        self.cache, self.fails, self.seen = cache, fails, set()

    def on_batch_end(self, trainer, step, logs):
        self.seen |= {path.name.partition("-")[2] for path in self.cache.glob("*/*.h5")}
        if self.fails and trainer.world.rank == 1:
            raise RuntimeError("a rank that fails")


def train(folder, name, callback, **data):
    return Trainer(
        build, f"{folder}/{name}.list", epochs=1, progress="off", callbacks=[callback],
        data={"batch_size": 32, **data}, run_dir=f"{folder}/run-{name}-{next(_numbers)}",
    ).fit()  # fmt: skip


def stream(world, folder):
    write_list(world, folder, "huge", 10, 20 * 2**30 // 10 // SAMPLE_BYTES, sparse=True)
    result = train(folder, "huge", StopEarly())
    # What getrusage tells is at least the size of the process that started this one.
    peak_kb = int(re.search("VmHWM:(.*) kB", Path("/proc/self/status").read_text())[1])
    return {
        "samples": result.summary["samples"],
        "torch": "torch" in sys.modules,
        "peak_mb": [kb / 1024 for kb in world.allgather_values(peak_kb)],
    }


def copy(world, folder, fails):
    look = Look(folder / "cache", fails)
    result = train(folder, "small", look, cache_dir=str(folder / "cache"))
    outcome = {
        "cached": [sorted(seen) for seen in world.allgather_values(look.seen)],
        "trained": result.summary["samples"],
    }
    world.barrier()
    return outcome | {"left": [path.name for path in (folder / "cache").iterdir()]}


def main(folder, what):
    world = init()
    if what == "huge":
        outcome = stream(world, folder)
    else:
        write_list(world, folder, "small", 3, 40, sparse=False)
        outcome = copy(world, folder, fails=False)
    if world.rank == 0:
        print("OUTCOME", json.dumps(outcome), flush=True)
    if what == "fail":
        copy(world, folder, fails=True)


main(Path(sys.argv[1]), sys.argv[2])
