"""`paceline events`: what the events of a run say."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "events",
        description="Read the events of a run. `check` tells whether they prove that every sample "
        "was used once in each epoch, whatever ranks were lost. Exit code: 0 if they do.",
    )
    parser.add_argument("action", choices=("check",))
    parser.add_argument("run", metavar="RUN", help="the run's directory")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    from paceline.observe import read_events
    from paceline.observe.event_check import check_events

    found = check_events(read_events(Path(args.run) / "events"))
    for problem in found.problems:
        sys.stdout.write(f"wrong: {problem}\n")
    for fact in found.facts:
        sys.stdout.write(f"{fact}\n")
    sys.stdout.write("every sample was used once in each epoch\n" if found.is_whole else "")
    return 0 if found.is_whole else 1
