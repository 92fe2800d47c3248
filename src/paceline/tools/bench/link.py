"""`bench link`: training over a slow network, between two hosts made on this machine."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from paceline.cluster.cores import THREAD_VARIABLES, available_cores, threads_per_rank
from paceline.cluster.detect import detect
from paceline.cluster.identity import JOB_DIR
from paceline.data.builtin import mnist
from paceline.errors import LaunchError
from paceline.launch.mpirun import find_mpirun, read_machine
from paceline.launch.supervise import supervise_command
from paceline.tools.bench.harness import read_answer, write_task
from paceline.tools.bench.hosts import NAMES, Hosts
from paceline.tools.bench.rows import Row

NAME = "link"
HELP = "train over a slow network by each rule, against DDP on gloo; makes two hosts, as root"

PEER = "ddp-gloo"
STEPS = 16
"""Steps in a round: as many as the longest period of a rule."""
_PROGRAM = "paceline.tools.bench.ranks.link:measure"


class LinkScale(TypedDict):
    """How large a network is trained, how far, and for how long at most."""

    hidden: Sequence[int]
    target: float
    limit_s: float
    timeout_s: float


class LinkSettings(LinkScale):
    """What the ranks are told."""

    rounds: int
    steps: int
    data_dir: str | None


_USUAL: LinkScale = {
    "hidden": (2048, 2048),
    "target": 0.97,
    "limit_s": 1800.0,
    "timeout_s": 8 * 3600.0,
}
_QUICK: LinkScale = {"hidden": (256, 256), "target": 0.9, "limit_s": 30.0, "timeout_s": 300.0}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rate",
        default="1gbit",
        metavar="RATE",
        help="what the network carries each way, for example 100mbit (default: 1gbit)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where the full MNIST lies (default: $PACELINE_DATA, then the cache; with --quick "
        "the digits that come along)",
    )


def measure(args: argparse.Namespace) -> list[Row]:
    if detect().launched:
        raise LaunchError("bench link starts its own ranks; call it once, without mpirun or srun")
    settings: LinkSettings = {
        **(_QUICK if args.quick else _USUAL),
        "rounds": args.rounds,
        "steps": STEPS,
        "data_dir": _find_data(args),
    }
    hosts = Hosts(args.rate)
    sys.stderr.write(f"link: {len(NAMES)} hosts, {args.rate}\n")
    with hosts:
        found = run_in_hosts(hosts, _PROGRAM, settings, settings["timeout_s"])
    return list(make_rows(args.rate, settings["target"], found))


def _find_data(args: argparse.Namespace) -> str | None:
    """Where the full MNIST is, None for the digits; an error before any host is made."""
    if args.quick and args.data_dir is None:
        return None
    mnist.load("validation", args.data_dir)
    return str(mnist.locate(args.data_dir))


def run_in_hosts(
    hosts: Hosts,
    program: str,
    settings: Mapping[str, object],
    timeout_s: float,
    ranks_per_host: int = 1,
) -> Any:
    """As `run_ranks` does, with so many ranks in each host, which share the machine's cores."""
    folder = Path(tempfile.mkdtemp(dir=hosts.folder))
    command = write_task(folder, program, settings, timeout_s)
    threads = threads_per_rank(ranks_per_host * len(hosts.names), available_cores())
    argv, extra = hosts.render_ranks(
        command, threads, find_mpirun(), read_machine(), ranks_per_host
    )
    env = {name: value for name, value in os.environ.items() if name != JOB_DIR} | extra
    env |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    code = supervise_command(argv, env, raw=os.environ.get("PACELINE_RAW") == "1")
    if code == 130:
        raise KeyboardInterrupt
    if code != 0:
        raise LaunchError(
            f"the ranks of {program} in {len(hosts.names)} hosts ended with exit code {code}; "
            "their messages are above"
        )
    return read_answer(folder)


def make_rows(rate: str, target: float, found: dict[str, dict[str, float]]) -> Iterator[Row]:
    """Three figures for each contestant, and the peer's; rows of a kind together."""
    peer = found[PEER]
    ours = {name: facts for name, facts in found.items() if name != PEER}
    for name, facts in ours.items():
        peers = {PEER: peer["samples_per_s"]}
        yield Row(NAME, f"{name}, {rate}", "samples/s", facts["samples_per_s"], peers)
    for name, facts in ours.items():
        peers = {PEER: peer["bytes_per_sample"]}
        case = f"{name}, {rate}, bytes per sample"
        yield Row(NAME, case, "bytes", facts["bytes_per_sample"], peers)
    for name, facts in ours.items():
        case = f"{name}, {rate}, time to {100 * target:.0f} %"
        peers, notes = {PEER: peer["seconds"]}, _note(target, facts, peer)
        yield Row(NAME, case, "s", facts["seconds"], peers, notes)


def _note(target: float, ours: dict[str, float], peer: dict[str, float]) -> dict[str, object]:
    """How a single run ended; one that did not reach the target would have taken longer."""
    notes: dict[str, object] = {
        "runs": 1,
        "accuracy": ours["accuracy"],
        f"{PEER} accuracy": peer["accuracy"],
    }
    failed = [name for name, facts in (("ours", ours), (PEER, peer)) if facts["accuracy"] < target]
    return notes | ({"not reached": ", ".join(failed)} if failed else {})
