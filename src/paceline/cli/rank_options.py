"""The options that say how many ranks a command gets, and where."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from paceline.cluster.cores import most_threads

if TYPE_CHECKING:
    from paceline.launch.ranks import RankRequest

MOST_RANKS = 1_000_000
"""The limit for a job on many hosts."""


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--ranks",
        type=partial(positive, most=MOST_RANKS),
        metavar="N",
        help="processes to start (default: one per physical core; under mpirun or srun "
        "theirs are joined instead)",
    )
    parser.add_argument(
        "--threads",
        type=partial(positive, most=most_threads()),
        metavar="T",
        help="threads per rank (default: $OMP_NUM_THREADS, else what the job was granted, else "
        "cores / ranks)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--hosts",
        metavar="A:16,B:16",
        help="machines to start ranks on by ssh, each with its number of ranks (default: its "
        "cores); in a job of a scheduler the granted hosts are used",
    )
    where.add_argument(
        "--hostfile", metavar="FILE", help="the same from a file: a host per line, as A:16"
    )
    parser.add_argument(
        "--launcher",
        choices=("mpirun", "srun"),
        help="what starts the ranks (default: mpirun; srun in a Slurm job that has no mpirun)",
    )
    parser.add_argument(
        "--restarts",
        type=_not_negative,
        default=0,
        metavar="N",
        help="start the ranks again after a failure, at most N times (default 0)",
    )


def read_rank_options(
    args: argparse.Namespace, elastic: bool = False, least: int = 1, replace: bool = False
) -> RankRequest:
    """The values of the options that `add_rank_options` adds."""
    from paceline.launch.ranks import RankRequest  # not for --help: it takes long

    return RankRequest(
        ranks=args.ranks,
        threads=args.threads,
        hosts=args.hosts,
        hostfile=args.hostfile,
        launcher=args.launcher,
        restarts=args.restarts,
        elastic=elastic,
        least=least,
        replace=replace,
    )


def positive(text: str, most: int) -> int:
    digits = text.isascii() and text.isdecimal() and len(text) <= 20
    if not digits or not 1 <= int(text) <= most:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise argparse.ArgumentTypeError(f"{shown!r} is not a number from 1 to {most}")
    return int(text)


def _not_negative(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)
