"""`paceline report` and `paceline events`: what runs have left in their directories."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

REPORT = "report.html"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add_report(commands)
    _add_events(commands)


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "report",
        description="Write one HTML page about a run, with the verdict, curves, and where time "
        "went; several runs are compared. It needs no network and can be sent to others. "
        "`paceline train` writes it at the end of each run.",
        usage="paceline report RUN [RUN ...] [-o FILE] [--csv FOLDER]",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run's directory")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help=f"write the page there (default: RUN/{REPORT}; for several runs {REPORT} here)",
    )
    parser.add_argument(
        "--csv",
        metavar="FOLDER",
        type=Path,
        help="also write the figures as epochs.csv, steps.csv and workers.csv",
    )
    parser.set_defaults(function=_report)


def _add_events(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "events",
        description="Read the events of a run. `check` tells whether they prove that every sample "
        "was used once in each epoch, whatever ranks were lost. Exit code: 0 if they do.",
    )
    parser.add_argument("action", choices=("check",))
    parser.add_argument("run", metavar="RUN", help="the run's directory")
    parser.set_defaults(function=_check_events)


def _report(args: argparse.Namespace, given: list[str]) -> int:
    from paceline.core.files import cannot_write
    from paceline.observe.page import write_report
    from paceline.observe.page.figures import read_run
    from paceline.observe.page.tables import write_tables

    runs = [read_run(path) for path in args.runs]
    alone = args.runs[0] / REPORT if len(runs) == 1 else Path(REPORT)
    path = args.output or alone
    try:
        write_report(runs, path)
        written = [path]
        if args.csv is not None:
            written += write_tables(runs, args.csv)
    except OSError as error:
        raise cannot_write(Path(error.filename or path), error) from error
    sys.stdout.write("".join(f"{one}\n" for one in written))
    return 0


def _check_events(args: argparse.Namespace, given: list[str]) -> int:
    from paceline.observe import read_events
    from paceline.observe.event_check import check_events

    found = check_events(read_events(Path(args.run) / "events"))
    for problem in found.problems:
        sys.stdout.write(f"wrong: {problem}\n")
    for fact in found.facts:
        sys.stdout.write(f"{fact}\n")
    sys.stdout.write("every sample was used once in each epoch\n" if found.is_whole else "")
    return 0 if found.is_whole else 1
