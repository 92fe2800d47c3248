"""`paceline report`: one page of a run, or of several compared."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

REPORT = "report.html"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
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
