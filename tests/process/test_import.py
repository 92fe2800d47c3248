"""A fresh Python imports paceline, and little else comes with it."""

import subprocess
import sys


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def test_import_loads_neither_torch_nor_mpi_nor_much_else():
    code = (
        "import sys; before = set(sys.modules); import paceline; "
        "heavy = {'torch', 'mpi4py', 'numpy', 'pydantic'} & set(sys.modules); "
        "print(len(set(sys.modules) - before), *heavy)"
    )
    modules, *heavy = run(code).split()
    assert heavy == []
    assert int(modules) <= 40


def test_init_alone_starts_no_mpi():
    code = "import paceline, sys; w = paceline.init(); print(w.size, 'mpi4py.MPI' in sys.modules)"
    assert run(code) == "1 False"
