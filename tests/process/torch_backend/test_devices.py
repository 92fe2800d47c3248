"""Every collective on tensors of another device."""

import subprocess
import sys

from support.ranks import TESTS, clean_environment


def test_every_collective_alone_through_the_host():
    program = TESTS / "mpi" / "programs" / "torch_backend_far.py"
    done = subprocess.run(
        [sys.executable, str(program)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed check_") >= 20
    fetched, stored = map(int, done.stdout.split("fetched ")[1].split(" stored "))
    assert min(fetched, stored) > 300
