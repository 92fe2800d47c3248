"""`paceline watch`: what runs are doing, from their directories alone."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.observe.watch.tail import RunTail

_LINES_EVERY_S, _DRAW_EVERY_S = 10.0, 1.0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "watch",
        description="Show what runs are doing, until they end: progress, loss, speed, and a line "
        "for each worker. It only reads the run's directory, so it works from a login node. "
        "Ctrl-C ends it, and not the run.",
        usage="paceline watch RUN [RUN ...] [--once] [--every SECONDS]",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run's directory")
    parser.add_argument("--once", action="store_true", help="show it once and exit")
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=float,
        help="how often to look (default: 1 on a terminal, else 10)",
    )
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    from paceline.observe.progress import has_terminal
    from paceline.observe.watch.tail import RunTail

    runs = [RunTail(path) for path in args.runs]
    terminal = has_terminal(os.environ, sys.stdout)
    every_s = max(0.1, args.every or (_DRAW_EVERY_S if terminal else _LINES_EVERY_S))
    try:
        (_draw if terminal else _write_lines)(runs, lambda: _wait(runs, every_s, args.once))
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    return 0


def _wait(runs: Sequence[RunTail], every_s: float, once: bool) -> bool:
    """Wait, then look again; whether there may be news."""
    if once or all(run.is_over for run in runs):
        return False
    time.sleep(every_s)
    for run in runs:
        run.look()
    return True


def _draw(runs: Sequence[RunTail], goes_on: Callable[[], bool]) -> None:
    from rich.live import Live

    from paceline.observe.watch.view import render_runs

    for run in runs:
        run.look()
    with Live(auto_refresh=False) as live:
        live.update(render_runs(runs), refresh=True)
        while goes_on():
            live.update(render_runs(runs), refresh=True)


def _write_lines(runs: Sequence[RunTail], goes_on: Callable[[], bool]) -> None:
    from paceline.observe.verdict import describe_verdict
    from paceline.observe.watch.view import describe_run

    for run in runs:
        run.look()
    while True:
        sys.stdout.write("".join(f"{describe_run(run)}\n" for run in runs))
        sys.stdout.flush()
        if not goes_on():
            break
    for run in runs:
        verdict = describe_verdict(run.summary or {})
        sys.stdout.write(f"{run.name}  {verdict}\n" if verdict else "")
