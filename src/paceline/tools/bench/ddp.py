"""`bench ddp`: torch.distributed on our backend mpi4py, against gloo."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NotRequired, TypedDict

from paceline.tools.bench.allreduce import KB, MB, render_size
from paceline.tools.bench.harness import run_ranks
from paceline.tools.bench.options import add_counts
from paceline.tools.bench.rows import Row
from paceline.tools.bench.step import add_networks

NAME = "ddp"
HELP = "DDP's step and torch's all_reduce on the backend mpi4py, against gloo"

NETWORKS = ("linear", "cnn", "mlp", "lstm")
QUICK_NETWORKS = ("linear",)
SIZES = (KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 25 * MB)
"""In bytes; DDP's buckets have at most 25 MB."""
QUICK_SIZES = (KB, MB)
_PROGRAM = "paceline.tools.bench.ranks.ddp:measure"
_TIMEOUT_S = 3600


class DDPSettings(TypedDict):
    """What the ranks are told."""

    networks: list[str]
    sizes: Sequence[int]
    rounds: int
    span_s: float
    round_s: float


class DDPTimes(TypedDict):
    """What they found: seconds per sum of so many bytes, or per step of a network."""

    seconds: dict[str, float]
    bytes: NotRequired[int]
    network: NotRequired[str]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_counts(parser, default=(2,), least=2)
    add_networks(parser, NETWORKS)


def measure(args: argparse.Namespace) -> list[Row]:
    networks = args.networks or (QUICK_NETWORKS if args.quick else NETWORKS)
    return [row for ranks in args.ranks for row in _measure_ranks(args, networks, ranks)]


def _measure_ranks(args: argparse.Namespace, networks: Sequence[str], ranks: int) -> list[Row]:
    sys.stderr.write(f"ddp: {ranks} ranks\n")
    settings: DDPSettings = {
        "networks": list(networks),
        "sizes": QUICK_SIZES if args.quick else SIZES,
        "rounds": args.rounds,
        "span_s": 0.005 if args.quick else 0.05,
        "round_s": 0.05 if args.quick else 0.5,
    }
    found = run_ranks(_PROGRAM, ranks, settings, timeout_s=_TIMEOUT_S)
    return [make_row(entry, ranks) for entry in found]


def make_row(entry: DDPTimes, ranks: int) -> Row:
    """
    >>> make_row({"bytes": 4096, "seconds": {"mpi4py": 0.001, "gloo": 0.002}}, 2)
    Row(bench='ddp', case='all_reduce, 4 KB, 2 ranks', unit='ms', ours=1.0, peers={'gloo': 2.0}, \
notes={})
    """
    what = f"all_reduce, {render_size(entry['bytes'])}" if "bytes" in entry else entry["network"]
    ms = {name: 1e3 * seconds for name, seconds in entry["seconds"].items()}
    return Row(NAME, f"{what}, {ranks} ranks", "ms", ms.pop("mpi4py"), ms)
