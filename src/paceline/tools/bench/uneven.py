"""`bench uneven`: training on sentences of uneven length, and how near it comes to the ideal.

The ideal: all work divided by the ranks; nobody waits, and nothing is exchanged. `counts` gives
each rank equally many sentences, `planned` equal lengths, `learned` equal costs that the first
epoch has taught. Of `dynamic` and `longest` each rank takes the next sentence when it is ready, in
random order, or the longest of a step first. Batches of the LSTM are padded to their longest
sentence, ours as DDP's; the tree-shaped model takes one sentence at a time, and so does whatever is
dealt.
"""

from __future__ import annotations

import argparse
import math
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TypedDict

import numpy as np

from paceline.cluster.detect import detect
from paceline.core.vectors import Vector
from paceline.data.sampling.balance import choose_bucketing, plan_balanced
from paceline.data.sampling.shards import draw_for, epoch_order, plan_steps
from paceline.errors import ConfigError, LaunchError
from paceline.tools.bench.harness import run_ranks
from paceline.tools.bench.hosts import NAMES, Hosts, check_means
from paceline.tools.bench.link import run_in_hosts
from paceline.tools.bench.options import add_counts, add_names, at_least
from paceline.tools.bench.rows import Row
from paceline.tools.bench.uneven_figures import Facts, make_overhead_row, make_rows

NAME = "uneven"
HELP = (
    "train on sentences of uneven length by equal counts, planned, learned and dynamic shares, "
    "against DDP on gloo with the samplers of transformers and lhotse where they are installed"
)

MODELS = ("lstm", "tree")
CORPORA = ("lognormal", "topics")
PARTS = ("compute", "hosts", "slow", "overhead", "planning")
BATCHES = (1, 8, 32)
LARGEST_AMONG_MANY = 8
"""Of the default batches, with more than two ranks."""
SLOWDOWN = 2
PLANNED_RANKS, PLANNED_BATCH = 1024, 8
_RANKS = "paceline.tools.bench.ranks.uneven"
_TIMEOUT_S = 4 * 3600.0


class Scale(TypedDict):
    """How much is measured."""

    batches: Sequence[int]
    sentences: int
    """Of an epoch."""
    hosts_ranks: Sequence[int]
    hosts_steps: dict[int, int]
    """Steps of a round for batches of so many."""
    planned: int
    """Lengths that are planned."""


_USUAL: Scale = {
    "batches": BATCHES,
    "sentences": 1024,
    "hosts_ranks": (16, 32),
    # Among 16 or 32 sentences of one step, one each, only those of many steps are about equal.
    "hosts_steps": {1: 128, 8: 12},
    "planned": 1_000_000,
}
_QUICK: Scale = {
    "batches": (4,),
    "sentences": 32,
    "hosts_ranks": (4,),
    "hosts_steps": {1: 8, 8: 2},
    "planned": 100_000,
}


class UnevenSettings(TypedDict):
    """What the ranks that compute are told."""

    cases: list[tuple[str, str, int]]
    """Models, corpora, and sentences per rank and step."""
    sentences: int
    """Of an epoch."""
    bucketing: dict[str, float]
    micro_batch: int
    rounds: int


class PartSettings(TypedDict):
    """What those of a slow or of an even world are told."""

    batches: list[int]
    sentences: int
    rounds: int


class HostsSettings(TypedDict):
    """What those in two hosts are told."""

    batches: list[int]
    steps: list[int]
    token_s: float
    rounds: int


def add_options(parser: argparse.ArgumentParser) -> None:
    add_counts(parser, default=(2, 4), least=2)
    add_names(parser, "--models", MODELS, "what is trained")
    add_names(
        parser,
        "--corpora",
        CORPORA,
        "sentences: random tokens in log-normal lengths, or English ones of Python's own "
        "documentation (pydoc_data.topics, in Debian's libpython3-stdlib)",
    )
    parser.add_argument(
        "--batch",
        nargs="+",
        type=at_least(1),
        metavar="B",
        help="sentences per rank and step (default: 1 8 32; with more than 2 ranks 1 8)",
    )
    add_names(parser, "--parts", PARTS, "what is measured")
    parser.add_argument(
        "--hosts-ranks",
        nargs="+",
        type=at_least(2),
        metavar="N",
        help="ranks in two hosts, whose examples take time without cores; makes the hosts, as root "
        "(default: 16 32, with --quick 4)",
    )
    parser.add_argument(
        "--token-ms",
        type=at_least(1),
        default=1,
        metavar="MS",
        help="the time that each of their tokens takes; a sentence has 20 on average (default: 1)",
    )
    parser.add_argument(
        "--bucketing",
        nargs="+",
        type=_read_bucketing,
        default=[],
        metavar="NAME=X",
        help="from 0 (random) to 1 (sorted) for planned or learned, for example planned=1 "
        "(default: as shard chooses)",
    )
    parser.add_argument(
        "--micro-batch",
        type=at_least(1),
        default=1,
        metavar="M",
        help="sentences that are dealt at a time (default: 1)",
    )


def _read_bucketing(text: str) -> tuple[str, float]:
    """
    >>> _read_bucketing("planned=0.5")
    ('planned', 0.5)
    """
    name, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if name not in ("planned", "learned") or not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not planned=X or learned=X with X from 0 to 1"
        )
    return name, value


def measure(args: argparse.Namespace) -> list[Row]:
    if detect().launched:
        raise LaunchError("bench uneven starts its own ranks; call it once, without mpirun or srun")
    measured: dict[str, Callable[[argparse.Namespace, Scale], Iterator[Row]]] = {
        "compute": _measure_compute,
        "hosts": _measure_hosts,
        "slow": _measure_slow,
        "overhead": _measure_overhead,
        "planning": _measure_planning,
    }
    _check_hosts_ranks(args.hosts_ranks or ())
    scale = _QUICK if args.quick else _USUAL
    return [
        row
        for part in PARTS
        if part in (args.parts or PARTS)
        for row in measured[part](args, scale)
    ]


def _check_hosts_ranks(counts: Sequence[int]) -> None:
    """Before hours of measuring, not after."""
    for ranks in counts:
        if ranks % len(NAMES):
            raise ConfigError(f"--hosts-ranks {ranks} is not a multiple of {len(NAMES)} hosts")


def _measure_compute(args: argparse.Namespace, scale: Scale) -> Iterator[Row]:
    for ranks in args.ranks:
        _say(f"compute, {ranks} ranks")
        batches = args.batch or choose_batches(scale["batches"], ranks)
        settings: UnevenSettings = {
            "cases": [
                (m, c, b)
                for m in (args.models or MODELS)
                for c in (args.corpora or CORPORA)
                for b in batches
            ],
            "sentences": scale["sentences"],
            "bucketing": dict(args.bucketing),
            "micro_batch": args.micro_batch,
            "rounds": args.rounds,
        }
        found = _run("measure", ranks, settings)
        for (model, corpus, batch), facts in zip(settings["cases"], found, strict=True):
            yield from make_rows(f"{model} {corpus} {ranks}x{batch}", facts)


def choose_batches(batches: Sequence[int], ranks: int) -> list[int]:
    """
    >>> choose_batches((1, 8, 32), ranks=2), choose_batches((1, 8, 32), ranks=4)
    ([1, 8, 32], [1, 8])
    """
    return [batch for batch in batches if ranks <= 2 or batch <= LARGEST_AMONG_MANY]


def _measure_hosts(args: argparse.Namespace, scale: Scale) -> Iterator[Row]:
    try:
        check_means()
    except ConfigError as error:
        if list(args.parts or PARTS) == ["hosts"]:
            raise
        _say(f"the part hosts is left out: {error}")
        return
    steps = scale["hosts_steps"]
    settings: HostsSettings = {
        "batches": list(steps),
        "steps": list(steps.values()),
        "token_s": 1e-3 * args.token_ms,
        "rounds": args.rounds,
    }
    for ranks in args.hosts_ranks or scale["hosts_ranks"]:
        _say(f"{len(NAMES)} hosts, {ranks} ranks")
        with Hosts() as hosts:
            found = run_in_hosts(
                hosts,
                f"{_RANKS}:measure_hosts",
                settings,
                _TIMEOUT_S,
                ranks_per_host=ranks // len(NAMES),
            )
        for batch, facts in zip(settings["batches"], found, strict=True):
            yield from make_rows(f"asleep {ranks}x{batch}", facts)


def _measure_slow(args: argparse.Namespace, scale: Scale) -> Iterator[Row]:
    settings = _part_settings(args, scale)
    _say(f"2 ranks, one {SLOWDOWN}x slower")
    for batch, facts in zip(settings["batches"], _run("measure_slow", 2, settings), strict=True):
        yield from make_rows(f"one {SLOWDOWN}x slower 2x{batch}", facts)


def _measure_overhead(args: argparse.Namespace, scale: Scale) -> Iterator[Row]:
    settings = _part_settings(args, scale)
    _say("2 ranks, equal sentences")
    for batch, facts in zip(settings["batches"], _run("measure_equal", 2, settings), strict=True):
        yield make_overhead_row(f"equal lengths 2x{batch}", facts)


def _part_settings(args: argparse.Namespace, scale: Scale) -> PartSettings:
    """Batches of more than one sentence: dealing single ones can balance nothing."""
    several = [batch for batch in args.batch or scale["batches"] if batch > 1]
    return {
        "batches": several or [LARGEST_AMONG_MANY],
        "sentences": scale["sentences"],
        "rounds": args.rounds,
    }


def _run(function: str, ranks: int, settings: Mapping[str, object]) -> list[dict[str, Facts]]:
    found: list[dict[str, Facts]] = run_ranks(
        f"{_RANKS}:{function}", ranks, settings, threads=1, timeout_s=_TIMEOUT_S
    )
    return found


def _measure_planning(args: argparse.Namespace, scale: Scale) -> Iterator[Row]:
    _say(f"planning {scale['planned']:,} lengths for {PLANNED_RANKS:,} ranks")
    figures = measure_planning(scale["planned"], PLANNED_RANKS, PLANNED_BATCH, args.rounds)
    case = f"planning {scale['planned']:,} for {PLANNED_RANKS:,}x{PLANNED_BATCH}"
    yield Row(NAME, case, "s", figures.pop("s"), {}, figures)


def measure_planning(samples: int, ranks: int, batch: int, rounds: int) -> dict[str, float]:
    """The best of several rounds for so many log-normal lengths: seconds, and their parts."""
    draw = np.random.default_rng(1)
    costs = np.clip(np.rint(draw.lognormal(math.log(20) - 0.245, 0.7, samples)), 1, 200)
    taken = [time_planning(costs, ranks, batch) for _ in range(rounds)]
    choose_s, plan_s, split_s = (min(parts) for parts in zip(*taken, strict=True))
    tracemalloc.start()  # in a round of its own: it takes time
    try:
        time_planning(costs, ranks, batch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return {
        "s": choose_s + plan_s,
        "choosing bucketing s": choose_s,
        "split of a step ms": 1e3 * split_s,
        "peak MB": peak / 1e6,
    }


def time_planning(costs: Vector, ranks: int, batch: int) -> tuple[float, float, float]:
    """Seconds to choose the bucketing, once; to plan an epoch; and to split one of its steps."""
    began = perf_counter()
    plan = plan_steps(len(costs), ranks, batch)
    bucketing = choose_bucketing(costs, plan)
    chosen = perf_counter()
    order = epoch_order(len(costs), seed=1, epoch=0)
    epoch = plan_balanced(costs[order], plan, bucketing=bucketing, draw=draw_for(1, 0, 1))
    planned = perf_counter()
    for step in range(len(epoch)):
        epoch.share(step, 0)
    return chosen - began, planned - chosen, (perf_counter() - planned) / len(epoch)


def _say(text: str) -> None:
    sys.stderr.write(f"uneven: {text}\n")
    sys.stderr.flush()
