"""`bench memory`: what a node needs for a model that several of its ranks train."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TypedDict

from paceline.models import MODELS
from paceline.tools.bench.harness import run_ranks
from paceline.tools.bench.options import add_counts
from paceline.tools.bench.ranks.mappings import check_kernel
from paceline.tools.bench.rows import Row

NAME = "memory"
HELP = "resident memory of a node that trains AlexNet on 1, 2 and 4 ranks, against DDP"

CONTESTANTS = ("ours", "ddp-gloo")
STEPS = 3
MB = 2**20
_PROGRAM = "paceline.tools.bench.ranks.memory:measure"
_KINDS = {
    "held": "parameters + optimizer state",
    "after_step": "resident after a step",
    "before_step": "resident before a step, with gradients",
}
"""What the ranks report, and its name in rows."""


class MemorySettings(TypedDict):
    """What the ranks are told."""

    contestant: str
    build: str
    images: list[int]
    classes: int
    steps: int


@dataclass(frozen=True)
class MemoryCase:
    """A model by its name, and the images it takes."""

    name: str
    shape: tuple[int, ...]
    classes: int
    batch: int = 2


ALEXNET = MemoryCase("alexnet", (3, 224, 224), 1000)
QUICK = MemoryCase("mnist", (1, 28, 28), 10)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_counts(parser, default=(1, 2, 4))
    parser.set_defaults(rounds=1)  # memory hardly varies, and each round restarts all ranks


def measure(args: argparse.Namespace) -> list[Row]:
    check_kernel()
    network = QUICK if args.quick else ALEXNET
    return [row for ranks in args.ranks for row in _measure_ranks(network, ranks, args.rounds)]


def _measure_ranks(network: MemoryCase, ranks: int, rounds: int) -> list[Row]:
    """A row for each kind; each contestant has processes of its own."""
    found: dict[str, dict[str, float]] = {kind: {} for kind in _KINDS}
    for _ in range(rounds):
        for contestant in CONTESTANTS:
            for kind, value in _measure_job(network, ranks, contestant).items():
                found[kind][contestant] = min(value, found[kind].get(contestant, value))
    return [
        _make_row(f"{network.name}, {_count(ranks)}, {title}", found[kind])
        for kind, title in _KINDS.items()
    ]


def _measure_job(network: MemoryCase, ranks: int, contestant: str) -> dict[str, float]:
    sys.stderr.write(f"memory: {network.name}, {_count(ranks)}, {contestant}\n")
    settings: MemorySettings = {
        "contestant": contestant,
        "build": MODELS[network.name],
        "images": [network.batch, *network.shape],
        "classes": network.classes,
        "steps": STEPS,
    }
    found: dict[str, float] = run_ranks(_PROGRAM, ranks, settings)
    return found


def _make_row(case: str, nbytes: dict[str, float]) -> Row:
    megabytes = {name: value / MB for name, value in nbytes.items()}
    ours = megabytes.pop("ours")
    return Row(NAME, case, "MB", ours, megabytes)


def _count(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"
