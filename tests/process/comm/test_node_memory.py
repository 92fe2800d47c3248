"""Locks of node memory, between processes."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from paceline.comm import node_memory as memory
from paceline.comm.node_memory import make_file, open_file

HOLDER = """
import pathlib, sys, time
from paceline.comm import node_memory as memory
memory._BY_OPEN_FILE = sys.argv[2] == "of the open file"
mine = memory.open_file(pathlib.Path(sys.argv[1]), 100, 2)
with mine.hold(1):
    mine.bytes[0] = 7
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["of the open file", "of the process"])
def test_the_lock_of_a_killed_rank_is_free(tmp_path, monkeypatch, kind):
    if kind == "of the open file" and not memory._BY_OPEN_FILE:
        pytest.skip("this system has no locks of open files")
    monkeypatch.setattr(memory, "_BY_OPEN_FILE", kind == "of the open file")
    path = make_file(tmp_path, 100)
    mine = open_file(path, 100, 2)
    got = threading.Event()

    def take():
        with mine.hold(1):
            got.set()

    holder = [sys.executable, "-c", HOLDER, str(path), kind]
    with subprocess.Popen(holder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with mine.hold(0):  # which the other one does not hold
            pass
        waiter = threading.Thread(target=take)
        waiter.start()
        clock = time.pthread_getcpuclockid(waiter.ident)
        began = time.monotonic()
        assert not got.wait(0.5)
        assert time.clock_gettime(clock) < 0.2 * (time.monotonic() - began)  # who waits sleeps
        process.send_signal(signal.SIGKILL)
        assert got.wait(60)
        waiter.join()
    assert mine.bytes[0] == 7
