"""The command `paceline`: one file per subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from paceline import __version__
from paceline.cli import bench, data, doctor, export, mpi_learn, run, submit, train, tune
from paceline.errors import PacelineError
from paceline.launch.environment import detect
from paceline.launch.world import exit_code, is_first_to_speak, wait_for_turn

COMMANDS = (train, run, data, doctor, export, bench, tune, submit, mpi_learn)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0 only if all of it succeeded."""
    parser = argparse.ArgumentParser(
        prog="paceline",
        description="Train one neural network on many processes that keep pace by a rule.",
    )
    parser.add_argument("--version", action="version", version=f"paceline {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = parser.parse_args(given)
    try:
        return int(args.function(args, given))
    except PacelineError as error:
        wait_for_turn(detect().rank or 0)
        if is_first_to_speak():
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return exit_code(error)
    except KeyboardInterrupt:
        sys.stderr.write("paceline: interrupted\n")
        return 130
