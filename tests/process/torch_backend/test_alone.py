"""The backend in a world of one, without MPI."""

import subprocess
import sys

from support.ranks import TESTS, clean_environment


def test_every_collective_alone_and_no_mpi_is_started():
    program = TESTS / "mpi" / "programs" / "torch_backend_collectives.py"
    code = (
        f"import runpy, sys; runpy.run_path({str(program)!r}); print('mpi4py.MPI' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed check_") >= 20
    assert done.stdout.splitlines()[-1] == "False"


def test_importing_it_starts_no_mpi():
    code = "import sys, paceline.torch_backend; print('mpi4py' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.strip() == "False", done.stderr
