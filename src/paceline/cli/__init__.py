"""The command `paceline`: subcommands are imported when they are called."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from paceline import __version__
from paceline.errors import PacelineError

COMMANDS = {
    "train": "train a model on N ranks",
    "run": "start any Python script on N ranks",
    "join": "let ranks join an elastic run that is under way",
    "leave": "let ranks leave it",
    "scale": "let ranks join or leave it until it has N",
    "init": "write a program to start from",
    "data": "write a data set as files",
    "doctor": "check whether training would run here",
    "events": "check what the events of a run say",
    "watch": "show what runs are doing, from their directories",
    "report": "write a page about a run, or compare runs",
    "export": "write the plain model of a run to a file",
    "bench": "measure Paceline against its peers",
    "tune": "find how many ranks and threads are fastest",
    "submit": "submit a training or a script to Slurm, Grid Engine, PBS or LSF",
    "mpi-learn": "train as mpi_learn's MPIDriver.py does",
}
"""Each subcommand and its line in the help."""

_TOGETHER = dict.fromkeys(("join", "leave", "scale"), "members") | {"events": "report"}
"""Subcommands that share a file."""


def module_of(name: str) -> str:
    """That of a subcommand."""
    return f"paceline.cli.{_TOGETHER.get(name, name.replace('-', '_'))}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0 only if all of it succeeded."""
    if os.environ.get("PACELINE_ELASTIC") == "joins":  # it was started to join a job
        from paceline.runtime.world import open_entrance

        open_entrance()
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = _make_parser(given[0] if given else None).parse_args(given)
    try:
        return int(args.function(args, given))
    except PacelineError as error:
        return _report(error)
    except KeyboardInterrupt:
        sys.stderr.write("paceline: interrupted\n")
        return 130
    except Exception as error:
        if sys.excepthook is not sys.__excepthook__:  # a program's own, or that of a rank
            raise
        from paceline.core.user_frames import show_trace

        sys.stderr.write(show_trace(error))
        return 1


def _make_parser(called: str | None) -> argparse.ArgumentParser:
    """Has the called subcommand; the others are needed only to list them."""
    parser = argparse.ArgumentParser(
        prog="paceline",
        description="Train one neural network on many processes that keep pace by a rule.",
    )
    parser.add_argument("--version", action="version", version=f"paceline {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    if called in COMMANDS:
        import_module(module_of(called)).add_parser(commands)
    else:
        for name, line in COMMANDS.items():
            commands.add_parser(name, help=line)
    return parser


def _report(error: PacelineError) -> int:
    """Report the error, unless another rank has reported it; return the exit code."""
    from paceline.cluster.detect import detect
    from paceline.runtime.failure import exit_code, is_first_to_report, wait_for_turn

    wait_for_turn(detect().rank or 0)
    if is_first_to_report():
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    return exit_code(error)
