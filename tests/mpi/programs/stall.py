"""One rank keeps the others waiting in some way, or none does: stall.py HOW WHO."""

import atexit
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from support.told import Told, count, wait_until_told

how, who = sys.argv[1], int(sys.argv[2])
left = False


@atexit.register  # before the one of `init`, so that it is called after it
def tell_that_it_has_left():
    if left:
        print("LEFT", flush=True)


import paceline  # noqa: E402
from paceline.comm import wait_until  # noqa: E402
from paceline.runtime.watchdog import stall_detector as stalls  # noqa: E402
from paceline.runtime.watchdog import thread as watch  # noqa: E402
from paceline.runtime.watchdog import watched  # noqa: E402

told = Path(os.environ.get("PACELINE_JOB_DIR", "/none"), "told")
STALLED, NAMED = "nothing has moved", rf"for rank {who} \(\S+\), busy in told.py"


def load(step):
    """What a rank does between two exchanges."""
    if world.rank != who or step < 3:
        return
    if how == "stop" and step == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "apart" and step == 3:
        wait_until(world.irecv(np.zeros(1)).done)
    if how == "busy":
        keep_busy()


def keep_busy():
    """Until rank 0 has named this rank, then until it has seen that all are moving again.

    A rank that gets too little of a busy machine is told of as one that is not heard of; then it
    tries again in the next step.
    """
    if count(told, NAMED + r"(?s:.*)moving again"):
        return
    if count(told, NAMED):
        wait_until_told(told, NAMED + r"(?s:.*)moving again")
        return
    wait_until_told(told, STALLED, count(told, STALLED) + 1)
    if count(told, NAMED):
        print("KNOWN", told.with_name("heartbeats.json").read_text(), flush=True)


def train(steps, warning_s, timeout_s):
    step = 0
    with watched(lambda: (step, step), warning_s, timeout_s):
        for step in range(steps):
            load(step)
            if how == "slow" and world.rank == who:
                time.sleep(0.25)
            world.barrier()


if how == "train":  # who waits for a beat to leave waits for ever
    watch._BEAT_S = watch._LONGEST_BEAT_S = 10_000.0
stalls.LEFT_S = 1.0
world = paceline.init()
if how == "busy" and world.rank == 0:
    sys.stderr = Told(told)
if how == "exit" and world.rank == who:
    sys.exit(0)
if how == "train":
    train(3, 40_000, 80_000)
elif how == "slow":
    train(20, 1, 3)
elif how == "busy":
    train(20, 1, 600)
elif how in ("stop", "apart"):
    train(6, 1, 3)
world.barrier()
left = True
if how == "finalize":
    from mpi4py import MPI

    MPI.Finalize()
    assert not watch._watch._thread.is_alive(), "it would talk by an MPI that has ended"
