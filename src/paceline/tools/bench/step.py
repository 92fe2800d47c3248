"""`bench step`: one training step of several networks, by each rule."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TypedDict

from paceline.rules import RULES
from paceline.tools.bench.harness import run_ranks
from paceline.tools.bench.options import add_counts, add_names
from paceline.tools.bench.rows import Row

NAME = "step"
HELP = "one training step by each rule, against no communication and DDP on gloo"

NETWORKS = ("linear", "cnn", "mlp", "lstm", "inception", "alexnet")
QUICK_NETWORKS = ("linear", "cnn")
PEERS = ("one", "limit", "ddp-gloo")
_PROGRAM = "paceline.tools.bench.ranks.step:measure"
_TIMEOUT_S = 3600
_ELASTIC_JOBS = 3


class StepSettings(TypedDict):
    """What the ranks are told."""

    network: str
    rules: list[str]
    rounds: int
    round_s: float


class StepTimes(TypedDict):
    """What they found for rules in the same rounds: seconds per step, and notes on each rule."""

    seconds: dict[str, float]
    notes: dict[str, dict[str, object]]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_counts(parser, default=(2,))
    add_networks(parser, NETWORKS)
    add_names(parser, "--rules", tuple(RULES), "how the ranks keep pace, with default settings")
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="instead: what --elastic costs while no rank is lost, in jobs of both kinds in turn",
    )


def add_networks(parser: argparse.ArgumentParser, networks: Sequence[str]) -> None:
    """`--networks cnn mlp`: some of these."""
    add_names(parser, "--networks", networks, "what is trained")


def measure(args: argparse.Namespace) -> list[Row]:
    networks = args.networks or (QUICK_NETWORKS if args.quick else NETWORKS)
    cases = [(network, ranks) for network in networks for ranks in args.ranks]
    return [row for network, ranks in cases for row in _measure_network(args, network, ranks)]


def _measure_network(args: argparse.Namespace, network: str, ranks: int) -> list[Row]:
    ranked = f"{ranks} rank{'s' * (ranks > 1)}"
    sys.stderr.write(f"step: {network}, {ranked}\n")
    settings: StepSettings = {
        "network": network,
        "rules": args.rules or list(RULES),
        "rounds": args.rounds,
        "round_s": 0.05 if args.quick else 0.5,
    }
    suffix = f", {ranked}" if len(args.ranks) > 1 else ""
    if args.elastic:
        return _measure_elastic(network, suffix, ranks, settings)
    found = run_ranks(_PROGRAM, ranks, settings, timeout_s=_TIMEOUT_S)
    return [row for group in found for row in make_rows(network, suffix, group)]


def _measure_elastic(network: str, suffix: str, ranks: int, settings: StepSettings) -> list[Row]:
    """The best of several jobs of each kind: MPI is started otherwise for an elastic run."""
    best: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for _ in range(_ELASTIC_JOBS):
        for elastic, known in best.items():
            found = run_ranks(_PROGRAM, ranks, settings, timeout_s=_TIMEOUT_S, elastic=elastic)
            for group in found:
                for rule in (*group["notes"], "limit"):
                    ms = 1e3 * group["seconds"][rule]
                    known[rule] = min(ms, known.get(rule, ms))
    limits = {"limit": best[True]["limit"], "limit of plain": best[False]["limit"]}
    return [
        Row(NAME, f"{network}, {rule}{suffix}, elastic", "ms", ms, {"plain": best[False][rule]}, {
            name: round(value, 4) for name, value in limits.items()
        })
        for rule, ms in best[True].items()
        if rule != "limit"
    ]  # fmt: skip


def make_rows(network: str, suffix: str, found: StepTimes) -> list[Row]:
    """A row per rule, with the peers that ran in the same rounds.

    >>> found = {"seconds": {"limit": 0.002, "bsp": 0.001}, "notes": {"bsp": {}}}
    >>> make_rows("mlp", "", found)
    [Row(bench='step', case='mlp, bsp', unit='ms', ours=1.0, peers={'limit': 2.0}, notes={})]
    """
    ms = {name: 1e3 * seconds for name, seconds in found["seconds"].items()}
    peers = {name: ms[name] for name in PEERS if name in ms}
    return [
        Row(NAME, f"{network}, {rule}{suffix}", "ms", ms[rule], dict(peers), notes)
        for rule, notes in found["notes"].items()
    ]
