"""`paceline train --help` answers at once: what it does not need is not imported."""

import subprocess
import sys

PROGRAM = """
import contextlib, io, sys
from paceline.cli import main
with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
    main(["train", "--help"])
print(len(said.getvalue()), *sys.modules)
"""
HEAVY = {"torch", "mpi4py", "jax", "keras", "yaml", "rich", "paceline.data", "paceline.launch"}
HEAVY |= {"paceline.training", "paceline.cluster.schedulers"}


def test_the_help_of_train_loads_settings_alone():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    length, *modules = done.stdout.split()
    assert int(length) > 2000
    assert "paceline.config.flags" in modules
    assert HEAVY & {*modules} == set()
