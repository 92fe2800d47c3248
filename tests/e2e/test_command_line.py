"""The command as a process of its own: how it begins."""

import re
import sys

from support.commands import run_program

from paceline import __version__

LOAD_ALL = """
import sys
from importlib import import_module
from paceline.cli import COMMANDS, module_of
for name in COMMANDS:
    import_module(module_of(name))
print([name for name in ("torch", "mpi4py") if name in sys.modules])
"""


def test_it_lists_its_subcommands(paceline):
    done = paceline("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name in (
        "train",
        "run",
        "data",
        "doctor",
        "export",
        "bench",
        "tune",
        "submit",
        "mpi-learn",
    ):
        assert re.search(rf"^    {name}\s", done.stdout, re.MULTILINE)
    assert paceline("--version").stdout == f"paceline {__version__}\n"


def test_no_subcommand_is_an_error(paceline):
    done = paceline()
    assert (done.returncode, done.stdout) == (2, "")
    assert "required: COMMAND" in done.stderr


def test_no_subcommand_loads_torch_or_mpi(tmp_path):
    done = run_program([sys.executable, "-c", LOAD_ALL], tmp_path)
    assert done.stdout.strip() == "[]", done.stderr
