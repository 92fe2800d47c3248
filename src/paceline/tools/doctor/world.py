"""The proof: start ranks as `paceline run` does, and judge the world that they form."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypedDict

from paceline.tools.doctor.check import Check

MARK = "paceline-trial "
"""Begins the line of rank 0's report."""
SMALL_BYTES, LARGE_BYTES, PAIR_BYTES = 4096, 16 * 2**20, 4 * 2**20
"""Of the all-reduces, and of messages between two nodes."""
TRIAL_S = 90.0
"""Longer than start and measurement take on any working network."""
_END_S = 20.0
_LAST_LINES = 12


class RankSeen(TypedDict):
    """A rank's node, the processors that it may use, and its OMP_NUM_THREADS."""

    node: str
    cpus: int
    threads: str


class PairSeen(TypedDict):
    """Messages between two nodes, one way."""

    nodes: list[str]
    small_s: float
    bytes_per_s: float


class Seen(TypedDict):
    """Rank 0's report."""

    size: int
    ranks: list[RankSeen]
    sum_is_right: bool
    small_s: float
    large_s: float
    pairs: list[PairSeen]


@dataclass(frozen=True)
class Trial:
    """How the ranks ended: rank 0's report, or the launcher's message."""

    seen: Seen | None
    said: str = ""
    command: tuple[str, ...] = field(default=())


def run_trial(options: Sequence[str], timeout_s: float = TRIAL_S) -> Trial:
    """Start ranks with these options of `paceline run`; after the timeout all are ended."""
    words = _arguments(options)
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    late = ""
    try:
        out, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        late = f"no world was formed and measured within {timeout_s:.0f} s"
        out, errors = end(process)
    finally:
        if process.poll() is None:
            end(process)
    shown = ("paceline", *words[2:])
    seen = None if late or process.returncode else read_outcome(out)
    said = "\n".join(errors.strip().splitlines()[-_LAST_LINES:])
    # After a timeout, the messages of ranks that are being ended do not help.
    return Trial(seen, late or said or f"exit code {process.returncode}", shown)


def _arguments(options: Sequence[str]) -> list[str]:
    return ["-m", "paceline", "run", *options, "--", "-m", "paceline.tools.doctor.trial"]


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ask the launcher to end its ranks; if it does not, kill it, and its reaper ends them."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=_END_S)
    process.kill()
    return process.communicate()


def read_outcome(out: str) -> Seen | None:
    """Rank 0's report; None if there is none."""
    for line in reversed(out.splitlines()):
        if line.startswith(MARK):
            seen: Seen = json.loads(line.removeprefix(MARK))
            return seen
    return None


def judge_trial(trial: Trial, expected: int, several: bool) -> list[Check]:
    """The checks of the world."""
    if trial.seen is None:
        return [_refused(trial, several)]
    seen = trial.seen
    nodes = list(dict.fromkeys(rank["node"] for rank in seen["ranks"]))
    formed = f"{seen['size']} ranks on {', '.join(nodes)} found each other"
    if seen["size"] != expected:
        return [
            Check(
                "world",
                "fail",
                f"{formed}, but {expected} were started",
                "See mpirun and MPI library above: they must be of one MPI.",
            )
        ]
    if several and len(nodes) < 2:
        return [
            Check(
                "world",
                "fail",
                f"{formed}, but there are several hosts",
                "Give every host a name of its own, and see host name above.",
            )
        ]
    if not seen["sum_is_right"]:
        return [
            Check(
                "world",
                "fail",
                f"{formed}, but a sum over them came out wrong",
                "The MPI library is broken here: use another version of it.",
            )
        ]
    return [Check("world", "ok", formed), _speed(seen), *_crowding(seen)]


def _refused(trial: Trial, several: bool) -> Check:
    by_hand = f"Try it by hand: {' '.join(trial.command)}"
    firewall = (
        "The hosts may not reach each other: let all TCP between them through the firewall, and "
        "see route and interfaces above. "
    )
    return Check("world", "fail", trial.said, (firewall if several else "") + by_hand)


def _speed(seen: Seen) -> Check:
    rate = LARGE_BYTES / seen["large_s"] / 1e9
    detail = f"4 KB in {seen['small_s'] * 1e6:.0f} us, 16 MB at {rate:.2f} GB/s"
    if seen["small_s"] > 2e-3:
        return Check(
            "all-reduce",
            "warn",
            f"{detail}: slow for a small one",
            "Are other programs busy on these cores, or ranks bound to the same one?",
        )
    return Check("all-reduce", "ok", detail)


def _crowding(seen: Seen) -> list[Check]:
    """Ranks with more threads than processors they may use."""
    for number, rank in enumerate(seen["ranks"]):
        threads = rank["threads"].split(",")[0]
        if threads.isdecimal() and int(threads) > rank["cpus"]:
            detail = (
                f"rank {number} on {rank['node']} has {threads} threads and may run on "
                f"{rank['cpus']} processors"
            )
            remedy = "Give --threads, or let the launcher bind ranks to more (--bind-to none)."
            return [Check("ranks' cores", "warn", detail, remedy)]
    return []
