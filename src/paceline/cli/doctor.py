"""`paceline doctor`: would training run here, and if not, what to do?"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from paceline.cluster.detect import detect
from paceline.cluster.hosts import Host, parse_hosts, read_hostfile
from paceline.cluster.schedulers import read_allocation
from paceline.cluster.schedulers.interface import Allocation
from paceline.errors import ConfigError, LaunchError
from paceline.tools.doctor.diagnose import Question, diagnose
from paceline.tools.doctor.page import Diagnosis, render_json, render_page


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        description="Look at Python, MPI, cores, memory, names, hosts and the scheduler, then "
        "start ranks and measure them. The exit code is 0 if training would run, else 1. "
        "Example: paceline doctor --hosts a:16,b:16",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="A:16,B:16", help="machines that ssh reaches")
    where.add_argument("--hostfile", metavar="FILE", help="the same from a file: a host per line")
    where.add_argument(
        "--in-job",
        action="store_true",
        help="the hosts of the scheduler's job that this runs in (the default inside a job)",
    )
    parser.add_argument(
        "-n", "--ranks", type=int, metavar="N", help="the ranks that you plan to train with"
    )
    parser.add_argument("--quick", action="store_true", help="start no ranks")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    if (_rank() or 0) > 0:
        return 0  # rank 0 reports
    if args.ranks is not None and args.ranks < 1:
        raise ConfigError(f"-n is {args.ranks}, expected 1 or more")
    question = Question(_hosts(args), _allocation(args), args.ranks, args.quick)
    with _ending_in_order():
        diagnosis = diagnose(question)
    if args.json:
        sys.stdout.write(render_json(diagnosis) + "\n")
    else:
        _print(diagnosis)
    return 1 if diagnosis.failures else 0


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that ranks that were started are ended, too."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _hosts(args: argparse.Namespace) -> tuple[Host, ...]:
    if args.hosts:
        return parse_hosts(args.hosts)
    return read_hostfile(Path(args.hostfile)) if args.hostfile else ()


def _allocation(args: argparse.Namespace) -> Allocation | None:
    if args.hosts or args.hostfile:
        return None
    allocation = read_allocation()
    if args.in_job and allocation is None:
        raise LaunchError(
            "--in-job was given, but this is no job of Slurm, Grid Engine, PBS or LSF. Use it in a "
            "job's script or shell (salloc, qrsh), or name the machines with --hosts"
        )
    return allocation


def _rank() -> int | None:
    try:
        return detect().rank
    except LaunchError:  # doctor reports it
        return None


def _print(diagnosis: Diagnosis) -> None:
    if not sys.stdout.isatty():
        for _, line in render_page(diagnosis):
            sys.stdout.write(f"{line}\n")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True)
    for style, line in render_page(diagnosis, shutil.get_terminal_size().columns):
        console.print(Text(line, style=style))
