"""`bench allreduce`: the sum of a vector over all ranks, from 1 KB to 100 MB."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TypedDict

from paceline.tools.bench.harness import run_ranks
from paceline.tools.bench.options import add_counts
from paceline.tools.bench.rows import Row

NAME = "allreduce"
HELP = "sum a vector over all ranks, 1 KB to 100 MB, against MPI_Allreduce, gloo and memcpy"

PEERS = ("mpi", "gloo", "memcpy")
KB, MB = 2**10, 2**20
SIZES = (KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 100 * MB)
QUICK_SIZES = (KB, 64 * KB, MB)
_PROGRAM = "paceline.tools.bench.ranks.allreduce:measure"


class SumSettings(TypedDict):
    """What the ranks are told."""

    sizes: Sequence[int]
    peers: list[str]
    rounds: int
    span_s: float


class SumTimes(TypedDict):
    """What they found for a size: seconds per call."""

    bytes: int
    seconds: dict[str, float]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_counts(parser, default=(2, 4), least=2)
    parser.add_argument(
        "--against",
        nargs="+",
        choices=PEERS,
        default=PEERS,
        metavar="PEER",
        help=f"the peers, of {', '.join(PEERS)} (default: all)",
    )


def measure(args: argparse.Namespace) -> list[Row]:
    return [row for ranks in args.ranks for row in _measure_ranks(args, ranks)]


def _measure_ranks(args: argparse.Namespace, ranks: int) -> list[Row]:
    sys.stderr.write(f"allreduce: {ranks} ranks\n")
    settings: SumSettings = {
        "sizes": QUICK_SIZES if args.quick else SIZES,
        "peers": [peer for peer in PEERS if peer in args.against],
        "rounds": args.rounds,
        "span_s": 0.005 if args.quick else 0.05,
    }
    found = run_ranks(_PROGRAM, ranks, settings, threads=1)
    return [_make_row(entry["bytes"], ranks, entry["seconds"]) for entry in found]


def _make_row(nbytes: int, ranks: int, seconds: dict[str, float]) -> Row:
    microseconds = {name: 1e6 * value for name, value in seconds.items()}
    ours = microseconds.pop("ours")
    return Row(NAME, f"{render_size(nbytes)}, {ranks} ranks", "us", ours, microseconds)


def render_size(nbytes: int) -> str:
    """
    >>> render_size(4096), render_size(100 * 2**20)
    ('4 KB', '100 MB')
    """
    return f"{nbytes // MB} MB" if nbytes >= MB else f"{nbytes // KB} KB"
