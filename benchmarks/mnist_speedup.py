"""Wall clock per epoch of full MNIST on one rank and on two, interleaved in one run.

    python benchmarks/mnist_speedup.py --data-dir DIR [--rounds 3] [--json FILE]

Each figure is the best of the rounds. "1 rank, 1 thread" is one rank as each of the two is;
"1 rank, all threads" is one process that uses every core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = {
    "1 rank, 1 thread": ["-n", "1", "--threads", "1"],
    "1 rank, all threads": ["-n", "1"],
    "2 ranks, 1 thread each": ["-n", "2", "--threads", "1"],
}


def epoch_seconds(data_dir: str, ranks: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary.json"
        command = [sys.executable, "-m", "paceline", "train", "mnist", "--data-dir", data_dir]
        options = ["--epochs", "1", "--summary", str(summary), "--run-dir", f"{folder}/run"]
        subprocess.run([*command, *options, *ranks], check=True, stdout=subprocess.DEVNULL)
        outcome = json.loads(summary.read_text())
        return outcome["samples"] / outcome["samples_per_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    args = parser.parse_args()
    best = dict.fromkeys(CASES, float("inf"))
    for number in range(args.rounds):
        for case, ranks in CASES.items():
            best[case] = min(best[case], epoch_seconds(args.data_dir, ranks))
        print(f"round {number + 1} of {args.rounds} done", flush=True)
    two = best["2 ranks, 1 thread each"]
    for case, seconds in best.items():
        print(f"{case:24} {seconds:7.2f} s per epoch   2 ranks take {two / seconds:.2f} of it")
    if args.json:
        Path(args.json).write_text(json.dumps(best, indent=1) + "\n")


if __name__ == "__main__":
    main()
