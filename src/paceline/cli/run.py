"""`paceline run`: start any Python script on several ranks."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from paceline.cli.rank_options import add_rank_options, read_rank_options
from paceline.cluster.detect import detect
from paceline.errors import SAVED, LaunchError
from paceline.launch.ranks import start_or_join
from paceline.runtime.failure import fail
from paceline.runtime.torchrun.env import is_on_one_node, set_torchrun_env
from paceline.runtime.torchrun.hook import bind_stores_to_loopback, set_default_rendezvous
from paceline.runtime.world import everyone, is_member, note_exit_code


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        description="Start a Python script on N ranks over MPI. An exception on one rank ends all "
        "of them. Scripts for torchrun run as they are: RANK, WORLD_SIZE, LOCAL_RANK, "
        "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set for each rank; a MASTER_ADDR or "
        "MASTER_PORT that you have set stays. Example: paceline run -n 4 -- train.py --lr 0.1",
        usage="paceline run [-n N] [--threads T] [--restarts N] -- SCRIPT [ARGUMENTS ...]",
    )
    add_rank_options(parser)
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="go on with the ranks that are left when others are lost (a Trainer does; Open MPI 5)",
    )
    parser.add_argument("script", help="a Python file, or -m and a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    if args.script == "-m" and not args.arguments:
        raise LaunchError("-m needs the name of a module: paceline run -n 2 -- -m package.module")
    if args.script != "-m" and not Path(args.script).is_file():
        problem = "is not a file" if Path(args.script).exists() else "does not exist"
        raise LaunchError(f"the script {args.script} {problem}")
    join = partial(_join, args.script, args.arguments)
    request = read_rank_options(args, args.elastic)
    return start_or_join(request, given, join, for_torch=True)


def _join(script: str, arguments: list[str]) -> int:
    """Run the script as a rank, in the environment that torchrun would give it."""
    set_torchrun_env(detect())
    if is_on_one_node(os.environ):
        bind_stores_to_loopback()
    set_default_rendezvous(_rendezvous_by_mpi)
    if find_spec("keras") is not None:
        from paceline.frameworks.keras.backend import prepare_backend

        prepare_backend()  # for scripts that import Keras before paceline.keras
    code = _run_script(script, arguments)
    note_exit_code(code)
    return code


def _rendezvous_by_mpi(url: str, **settings: Any) -> Iterator[tuple[object, int, int]]:
    """Ranks of another launcher than ours have no MASTER_ADDR; MPI is started to agree on one."""
    from paceline.torch_backend.rendezvous import mpi_rendezvous

    return mpi_rendezvous(url, **settings)


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
    """End all ranks: the others would wait for this one."""
    world = everyone()
    if world.size > 1 or is_member():
        fail(world, error)
    raise error
