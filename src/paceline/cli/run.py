"""`paceline run`: start any Python script as ranks of one world."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any, NoReturn

from paceline.cli.ranks import add_rank_options, start_or_join
from paceline.errors import LaunchError
from paceline.launch.world import fail, init


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="start any Python script on N ranks",
        description="Start a Python script on N ranks over MPI. An exception on one rank ends all "
        "of them. Example: paceline run -n 4 -- train.py --lr 0.1",
        usage="paceline run [-n N] [--threads T] -- SCRIPT [ARGUMENTS ...]",
    )
    add_rank_options(parser)
    parser.add_argument("script", help="a Python file, or -m and a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    if args.script != "-m" and not Path(args.script).is_file():
        raise LaunchError(f"the script {args.script} does not exist")
    return start_or_join(args, given, lambda: _run_script(args.script, args.arguments))


def _run_script(script: str, arguments: list[str]) -> int:
    """Run the script in this process, as `python script arguments` would."""
    try:
        if script == "-m":
            sys.argv = arguments
            sys.path.insert(0, "")
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [script, *arguments]
            sys.path.insert(0, str(Path(script).resolve().parent))
            runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        return _exit(stop.code)
    except Exception as error:
        _end_all(error)
    return 0


def _exit(code: str | int | None) -> int:
    """A rank that exits non-zero ends the others, which would wait for it."""
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    if code and _uses_mpi():
        init().abort(code)
    return code or 0


def _end_all(error: Exception) -> NoReturn:
    if _uses_mpi():
        fail(init(), error)
    raise error  # mpirun ends the other ranks when this process exits non-zero


def _uses_mpi() -> bool:
    return "mpi4py.MPI" in sys.modules
