"""The watch reads the stack of a training thread from outside; that must never harm the run."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "looked_at.py"


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_torch_program_is_looked_at_tens_of_thousands_of_times():
    """A walk along `f_back` in Python fails or crashes here, mostly within a minute."""
    argv = [sys.executable, str(PROGRAM), "60"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=140)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "looked" in done.stdout
