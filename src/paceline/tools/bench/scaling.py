"""`bench scaling`: the time that 5120 images take on more and more ranks, and where it goes.

Seed 003 published this table for bulk synchronous training, in seconds per 5120 images:

| model | 1 GPU | 2 | 4 | 8 | 16 |
|---|---|---|---|---|---|
| AlexNet-128b | 31.4 | 16.8 | 9.2 | 5.6 | |
| GoogLeNet-32b | 147.2 | 81.7 | 57.2 | 57.5 | |
| VGGNet-32b | 410.3 | 216.0 | 113.8 | 64.7 | 38.5 |

The number behind a name is the batch of each rank. Here a rank has as many threads among few as
among many, as a GPU is one GPU; ours is wall clock, waiting for others and for data included.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from typing import TypedDict

from paceline.cluster.cores import available_cores, threads_per_rank
from paceline.tools.bench.harness import run_ranks
from paceline.tools.bench.options import add_counts, at_least
from paceline.tools.bench.rows import Row

NAME = "scaling"
HELP = "time per 5120 images of AlexNet, GoogLeNet and VGG on 1, 2, ... ranks, and where it goes"

IMAGES = 5120
BATCHES = {"alexnet": 128, "googlenet": 32, "vgg": 32}
"""Images per rank and step, as in the table above."""
QUICK_NETWORK, QUICK_BATCH = "googlenet", 2
_PROGRAM = "paceline.tools.bench.ranks.scaling:measure"


class ScalingSettings(TypedDict):
    """What the ranks are told."""

    network: str
    batch: int
    images: int
    run_dir: str


class ScalingTimes(TypedDict):
    """What they found: seconds for so many images, and how these were spent."""

    seconds: float
    split: dict[str, float]
    images: int


def add_options(parser: argparse.ArgumentParser) -> None:
    add_counts(parser, default=(1, 2))
    parser.add_argument(
        "--networks",
        nargs="+",
        choices=tuple(BATCHES),
        metavar="NAME",
        help=f"what is trained, of {', '.join(BATCHES)} (default: all)",
    )
    parser.add_argument(
        "--images",
        type=at_least(1),
        default=1,
        metavar="N",
        help=f"images to measure with, rounded up to whole steps of all ranks and extrapolated to "
        f"{IMAGES} (default: one step)",
    )


def measure(args: argparse.Namespace) -> list[Row]:
    networks = args.networks or ([QUICK_NETWORK] if args.quick else list(BATCHES))
    return [row for network in networks for row in _measure_network(args, network)]


def _measure_network(args: argparse.Namespace, network: str) -> list[Row]:
    """Numbers of ranks in turn, so that other load on the machine affects all alike."""
    batch = QUICK_BATCH if args.quick else BATCHES[network]
    threads = threads_per_rank(max(args.ranks), available_cores())
    best: dict[int, ScalingTimes] = {}
    for turn in range(args.rounds):
        for ranks in args.ranks:
            found = _train(network, batch, ranks, threads, args.images)
            _say(f"{network}-{batch}b", turn, args.rounds, ranks, found)
            if ranks not in best or found["seconds"] < best[ranks]["seconds"]:
                best[ranks] = found
    return make_rows(f"{network}-{batch}b", best, threads)


def _train(network: str, batch: int, ranks: int, threads: int, images: int) -> ScalingTimes:
    with tempfile.TemporaryDirectory(prefix="paceline-scaling-") as folder:
        settings: ScalingSettings = {
            "network": network,
            "batch": batch,
            "images": whole_steps(images, batch * ranks),
            "run_dir": f"{folder}/run",
        }
        found: ScalingTimes = run_ranks(_PROGRAM, ranks, settings, threads=threads)
    return found


def whole_steps(images: int, batch: int) -> int:
    """The number of images, rounded up so that every step has a full batch.

    >>> whole_steps(1, 64), whole_steps(128, 64), whole_steps(129, 64)
    (64, 128, 192)
    """
    return -(-images // batch) * batch


def make_rows(case: str, found: dict[int, ScalingTimes], threads: int) -> list[Row]:
    """A row for each number of ranks; the peer of several ranks is one."""
    seconds = {ranks: IMAGES / one["images"] * one["seconds"] for ranks, one in found.items()}
    return [
        Row(
            NAME,
            f"{case}, {ranks} rank{'s' * (ranks > 1)}",
            "s",
            seconds[ranks],
            {"one": seconds[1]} if ranks > 1 and 1 in seconds else {},
            _notes(one) | {"threads per rank": threads},
        )
        for ranks, one in found.items()
    ]


def _notes(found: ScalingTimes) -> dict[str, object]:
    """Where the time went, for as many images as the time is given for; how many there were."""
    factor = IMAGES / found["images"]
    split: dict[str, object] = {name: factor * seconds for name, seconds in found["split"].items()}
    return split | {"images": found["images"], "extrapolated": f"x {factor:g}"}


def _say(case: str, turn: int, rounds: int, ranks: int, found: ScalingTimes) -> None:
    place = f"{case} on {ranks}, round {turn + 1} of {rounds}"
    sys.stderr.write(f"scaling: {place}: {found['images']} images in {found['seconds']:.2f} s\n")
    sys.stderr.flush()
