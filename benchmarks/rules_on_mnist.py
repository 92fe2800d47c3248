"""Every rule on the full MNIST, 2 ranks: accuracy, time, bytes sent.

    python benchmarks/rules_on_mnist.py --data-dir DIR [--epochs 5] [--only diloco]

Prints the table of docs/rules.md. Times are wall clock of training, waiting included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline.observe import read_events

ADAMW = ["--optimizer", "adamw", "--lr", "1e-3"]
CASES = {
    "bsp": ["--rule", "bsp"],
    "bsp, what: weights": ["--rule", "bsp", "--set", "rule.what=weights"],
    "average (once an epoch)": ["--rule", "average"],
    "average, every: 16": ["--rule", "average", "--set", "rule.every=16"],
    "average, every: 16, start_after: 400": [
        "--rule", "average", "--set", "rule.every=16", "--set", "rule.start_after=400",
    ],
    'average, every: "2s"': ["--rule", "average", "--set", "rule.every=2s"],
    "diloco, every: 16, adamw": ["--rule", "diloco", "--set", "rule.every=16", *ADAMW],
    "diloco, every: 16, fragments: 4, adamw": [
        "--rule", "diloco", "--set", "rule.every=16", "--set", "rule.fragments=4", *ADAMW,
    ],
}  # fmt: skip


def measure(data_dir: str, epochs: int, options: list[str]) -> tuple[float, float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "paceline", "train", "mnist", "-n", "2"]
        where = ["--data-dir", data_dir, "--run-dir", f"{folder}/run", "--epochs", str(epochs)]
        subprocess.run([*command, *where, *options], check=True, stdout=subprocess.DEVNULL)
        outcome = json.loads(Path(f"{folder}/run/summary.json").read_text())
        sent = sum(event["bytes"] for event in read_events(Path(f"{folder}/run/events")))
        seconds = outcome["samples"] / outcome["samples_per_s"]
        return outcome["val_accuracy"], outcome["val_loss"], seconds, sent / outcome["samples"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    print("| rule | val accuracy | val loss | seconds | bytes per sample |\n|---|---|---|---|---|")
    for case, options in CASES.items():
        if args.only not in case:
            continue
        accuracy, loss, seconds, sent = measure(args.data_dir, args.epochs, options)
        row = f"{accuracy:.2%} | {loss:.4f} | {seconds:.1f} | {sent:,.1f}"
        print(f"| `{case}` | {row} |", flush=True)


if __name__ == "__main__":
    main()
