"""The node's copies of data files go with a rank that is killed."""

import subprocess
import sys
import time

from support.ranks import clean_environment


def test_the_copies_of_a_rank_that_is_killed_go_without_a_further_run(tmp_path):
    far, near = tmp_path / "far.bin", tmp_path / "near"
    far.write_bytes(bytes(1000))
    program = f"""
import os, signal
from pathlib import Path
from paceline.data.cache.node_cache import NodeCache
(copy,) = NodeCache(Path({str(near)!r}), "run").fetch([Path({str(far)!r})])
print(copy, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -9, done.stderr
    assert str(near) in done.stdout
    deadline = time.monotonic() + 60
    while list(near.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(near.iterdir()) == []
