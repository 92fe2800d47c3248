"""`paceline run`: start any Python script as ranks of one world."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any, NoReturn

from paceline.cli.ranks import add_rank_options, start_or_join
from paceline.errors import LaunchError
from paceline.launch.foreground import SAVED
from paceline.launch.world import everyone, fail


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="start any Python script on N ranks",
        description="Start a Python script on N ranks over MPI. An exception on one rank ends all "
        "of them. Example: paceline run -n 4 -- train.py --lr 0.1",
        usage="paceline run [-n N] [--threads T] [--restarts N] -- SCRIPT [ARGUMENTS ...]",
    )
    add_rank_options(parser)
    parser.add_argument("script", help="a Python file, or -m and a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    if args.script == "-m" and not args.arguments:
        raise LaunchError("-m needs the name of a module: paceline run -n 2 -- -m package.module")
    if args.script != "-m" and not Path(args.script).is_file():
        problem = "is not a file" if Path(args.script).exists() else "does not exist"
        raise LaunchError(f"the script {args.script} {problem}")
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
        if stop.code in (None, 0):
            return 0
        if stop.code == SAVED:  # all ranks do so together: none waits for this one
            return SAVED
        _end_all(stop)
    except BaseException as error:
        _end_all(error)
    return 0


def _end_all(error: BaseException) -> NoReturn:
    """The others would wait for this rank; without MPI, mpirun ends them when it exits."""
    if everyone().size > 1:
        fail(everyone(), error)
    raise error
