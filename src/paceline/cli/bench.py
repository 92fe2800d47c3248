"""`paceline bench`: measure Paceline and its peers, in one run on this machine."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from paceline.tools.bench import BENCHES, Bench
from paceline.tools.bench.machine import describe_machine
from paceline.tools.bench.options import add_shared_options, default_rounds
from paceline.tools.bench.rows import Row, check_plot, plot_rows, render_table, write_rows
from paceline.training.run_dir import check_writable


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "bench",
        description="Measure Paceline and its peers, in turn in one run on this machine; the best "
        "of several rounds counts. Example: paceline bench allreduce --against gloo",
    )
    benches = parser.add_subparsers(dest="bench", metavar="BENCH", required=True)
    for bench in BENCHES:
        description = f"{bench.HELP[0].upper()}{bench.HELP[1:]}."
        one = benches.add_parser(bench.NAME, help=bench.HELP, description=description)
        bench.add_options(one)
        add_shared_options(one)
        one.set_defaults(function=run, measured=bench)


def run(args: argparse.Namespace, given: list[str]) -> int:
    default_rounds(args)
    _check_outputs(args)
    bench: Bench = args.measured
    rows = bench.measure(args)
    sys.stdout.write(_render(rows, args.rounds, given))
    _write(args, rows)
    return 0


def _check_outputs(args: argparse.Namespace) -> None:
    """Check output files before hours of measuring, not after."""
    if args.plot is not None:
        check_plot(args.plot)
    for path in (args.json, args.plot):
        if path is not None:
            check_writable(Path(path))


def _render(rows: list[Row], rounds: int, given: list[str]) -> str:
    counted = "one round" if rounds == 1 else f"best of {rounds} rounds"
    return (
        f"{render_table(rows)}\n"
        f"{counted}; 'vs' says how many times better ours is (below 1x: worse)\n"
        f"{describe_machine()}command: {shlex.join(['paceline', *given])}\n"
    )


def _write(args: argparse.Namespace, rows: list[Row]) -> None:
    if args.json is not None:
        write_rows(rows, args.json)
    if args.plot is not None:
        plot_rows(rows, args.plot)
