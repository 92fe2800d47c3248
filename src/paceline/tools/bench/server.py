"""`bench server`: exchanges per second of two workers with a centre."""

from __future__ import annotations

import argparse
import sys
from typing import TypedDict

from paceline.tools.bench.harness import run_ranks
from paceline.tools.bench.rows import Row

NAME = "server"
HELP = "exchanges per second of 2 workers with a centre, against a naive server"

WORKERS = 2
RANKS = WORKERS + 1
MILLION = 1_000_000
EXCHANGES = {MILLION: 100, 25 * MILLION: 10}
"""By the size of the model: exchanges of each worker in a round."""
QUICK_EXCHANGES = {MILLION: 20}
_PROGRAM = "paceline.tools.bench.ranks.server:measure"


class ServerSettings(TypedDict):
    """What the ranks are told."""

    parameters: int
    exchanges: int
    rounds: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """It has none of its own."""


def measure(args: argparse.Namespace) -> list[Row]:
    sizes = QUICK_EXCHANGES if args.quick else EXCHANGES
    return [
        row
        for parameters, exchanges in sizes.items()
        for row in _measure_size(parameters, exchanges, args.rounds)
    ]


def _measure_size(parameters: int, exchanges: int, rounds: int) -> list[Row]:
    size = f"{parameters // MILLION} M parameters"
    sys.stderr.write(f"server: {size}\n")
    settings: ServerSettings = {
        "parameters": parameters,
        "exchanges": exchanges,
        "rounds": rounds,
    }
    rates = run_ranks(_PROGRAM, RANKS, settings, threads=1)
    peers = {"naive": rates.pop("naive")}
    return [
        Row(NAME, f"{size}, {place}", "exchanges/s", rate, peers, _note(ranks))
        for (place, rate), ranks in zip(rates.items(), (WORKERS, RANKS), strict=True)
    ]


def _note(ranks: int) -> dict[str, int]:
    """How many ranks took part: a centre in the node's memory needs none."""
    return {"ranks": ranks, "naive ranks": RANKS}
