"""One rank keeps the others waiting in some way, or none does."""

import atexit
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

how, who = sys.argv[1], int(sys.argv[2])
main_ended = 0.0


@atexit.register  # before the one of `init`, so that it is called after it
def tell_how_long_leaving_took():
    if main_ended:
        print(f"LEFT after {time.monotonic() - main_ended:.3f} s", flush=True)


import paceline  # noqa: E402
from paceline.launch.watch import watched  # noqa: E402


def load(step):
    """What a rank does between two exchanges."""
    if world.rank != who or step != 3:
        return
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "busy":
        time.sleep(float(sys.argv[3]))
        pulse = Path(os.environ.get("PACELINE_JOB_FOLDER", "/none"), "pulse.json")
        if pulse.exists():
            print("KNOWN", pulse.read_text(), flush=True)
    if how == "apart":
        world.receive(np.zeros(1))


def train(steps, warning_s, timeout_s):
    step = 0
    with watched(lambda: (step, step), warning_s, timeout_s):
        for step in range(steps):
            load(step)
            if how in ("slow", "busy") and world.rank == who:
                time.sleep(0.3)
            world.barrier()


world = paceline.init()
if how == "exit" and world.rank == who:
    sys.exit(0)
if how == "train":
    train(3, 30, 60)
elif how == "slow":
    train(10, 0.5, 1.5)
elif how == "busy":
    train(8, 0.5, 60)
elif how in ("stop", "apart"):
    train(6, 1, 3)
world.barrier()
main_ended = time.monotonic()
if how == "finalize":
    from mpi4py import MPI

    MPI.Finalize()
    time.sleep(1.5)  # long enough for a beat
