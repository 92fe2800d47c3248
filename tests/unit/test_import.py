"""Importing paceline is quick and starts nothing."""

import subprocess
import sys
import time

import paceline


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def test_import_is_quick_and_loads_neither_torch_nor_mpi():
    code = (
        "import sys, time; began = time.perf_counter(); import paceline; "
        "took = time.perf_counter() - began; "
        "heavy = [m for m in ('torch', 'mpi4py', 'numpy', 'pydantic') if m in sys.modules]; "
        "print(took, heavy)"
    )
    results = [run(code) for _ in range(3)]
    assert all(result.endswith("[]") for result in results)
    assert min(float(result.split()[0]) for result in results) < 0.3


def test_python_starts_and_imports_within_a_moment():
    began = time.monotonic()
    run("import paceline")
    assert time.monotonic() - began < 5


def test_every_public_name_exists():
    for name in paceline.__all__:
        assert getattr(paceline, name) is not None
    assert set(paceline.__all__) <= set(dir(paceline))


def test_unknown_names_are_attribute_errors():
    assert not hasattr(paceline, "no_such_name")


def test_init_alone_starts_no_mpi():
    code = "import paceline, sys; w = paceline.init(); print(w.size, 'mpi4py.MPI' in sys.modules)"
    assert run(code) == "1 False"
