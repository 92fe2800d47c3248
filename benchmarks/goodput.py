"""What is left of a run's speed when ranks are killed and replaced all the time.

    python benchmarks/goodput.py --minutes 10 --every 60

Trains the MNIST network on 4 ranks with --elastic --replace, kills a random rank again and again,
and counts the samples of steps that were not lost. Before and after, the same without kills: the
machine may not be the same all the time. From the events of the run, too: how long the others took
no step after a kill, and when somebody was let in.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from soak import kill_rank

WARM_UP_S = 10.0
"""After the first step: caches, and the first epochs."""
DEADLINE_S = 120.0


class Course(NamedTuple):
    """How a run went."""

    samples_per_s: float
    after_kills_s: list[float]
    after_joins_s: list[float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="with kills (default 10)")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between kills")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--model", default="mnist")
    parser.add_argument("--rule", default="bsp")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    whole_s = 60.0 * args.minutes
    parts = [(whole_s / 4, None), (whole_s, args.every), (whole_s / 4, None)]
    courses = [_run(args, seconds, every_s) for seconds, every_s in parts]
    calm = statistics.mean([courses[0].samples_per_s, courses[2].samples_per_s])
    for name, course in zip(("without kills", "with kills", "without kills"), courses, strict=True):
        print(f"{name}: {course.samples_per_s:,.0f} samples/s")
    stormy = courses[1]
    print(f"goodput: {100 * stormy.samples_per_s / calm:.1f} %, {len(stormy.after_kills_s)} kills")
    print(f"no step after a kill: {_describe(stormy.after_kills_s)}")
    print(f"no step when one was let in: {_describe(stormy.after_joins_s)}")
    return 0


def _run(args: argparse.Namespace, seconds: float, every_s: float | None) -> Course:
    with tempfile.TemporaryDirectory(prefix="paceline-goodput-") as folder:
        run_dir, log = Path(folder, "run"), Path(folder, "log")
        command = [
            *(sys.executable, "-m", "paceline", "train", args.model, "digits"),
            *("-n", str(args.ranks), "--threads", "1", "--rule", args.rule),
            *("--elastic", "--replace", "--epochs", "100000", "--run-dir", str(run_dir)),
        ]
        with log.open("w") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True
            )
        try:
            began = _wait_for_steps(run_dir, process) + WARM_UP_S
            time.sleep(WARM_UP_S)
            chance, end = random.Random(args.seed), time.time() + seconds
            while time.time() < end:
                time.sleep(min(every_s or seconds, max(0.0, end - time.time())))
                if every_s is not None and time.time() < end:
                    kill_rank(process.pid, chance)
            assert process.poll() is None, log.read_text()[-2000:]
        finally:
            process.terminate()
            process.wait(timeout=DEADLINE_S)
        return _measure(_read(run_dir), began, began + seconds)


def _wait_for_steps(run_dir: Path, process: subprocess.Popen[bytes]) -> float:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end and process.poll() is None:
        if any('"step",' in path.read_text() for path in run_dir.glob("events/*0000.jsonl")):
            return time.time()
        time.sleep(0.1)
    raise RuntimeError("the run has not begun")


def _read(run_dir: Path) -> list[dict[str, Any]]:
    events = []
    for path in run_dir.glob("events/*.jsonl"):
        for line in path.read_text().splitlines():
            if line.endswith("}"):  # a rank that is killed may leave half a line
                events.append(json.loads(line))
    return events


def _measure(events: Sequence[dict[str, Any]], began: float, end: float) -> Course:
    steps = [event for event in events if event["event"] == "step"]
    samples = sum(event["samples"] for event in steps if began <= event["time"] < end)
    ends: dict[int, list[float]] = defaultdict(list)
    for event in steps:
        ends[event["generation"]].append(event["time"])
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for event in events:
        number = event.get("generation", 0)
        if event["event"] == "generation" and ends[number] and ends[number - 1]:
            gap = min(ends[number]) - max(ends[number - 1])
            gaps[bool(event["joined"])].append(gap)
    return Course(samples / (end - began), gaps[False], gaps[True])


def _describe(seconds: Sequence[float]) -> str:
    if not seconds:
        return "never seen"
    middle = statistics.median(seconds)
    return f"{middle:.2f} s median, {max(seconds):.2f} s worst of {len(seconds)}"


if __name__ == "__main__":
    raise SystemExit(main())
