"""Every rule on the full MNIST, 2 workers: accuracy, time, bytes sent.

    python benchmarks/rules_on_mnist.py --data-dir DIR [--epochs 5] [--only diloco]
        [--json FILE] [--plot FILE.svg]
    python benchmarks/rules_on_mnist.py --from FILE --plot FILE.svg

Prints the table of docs/rules.md. Times are wall clock of training, waiting included. Without
--data-dir it takes the digits that come along. A plot needs matplotlib (pip install
'paceline[plots]'); --from draws what --json has saved, without training.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.observe import History, read_events

ADAMW = ("--optimizer", "adamw", "--lr", "1e-3")
PLAIN = ("--momentum", "0")
PAPER = ("--set", "optimizer.nesterov=true")
TEN = {"push_every": 10, "pull_every": 10}

# Okabe and Ito's colours, told apart by the colour-blind too; black is for bsp, in every panel.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vX"


@dataclass(frozen=True)
class Case:
    """A rule with its settings, other options of the run with their name, how many ranks, and how
    they exchange."""

    rule: str
    settings: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    note: str = ""
    ranks: int = 2
    exchange: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As in the table: rule and settings in code, the rest in words."""
        settings = self.settings | self._exchange()
        code = ", ".join([self.rule, *(f"{key}: {show(v)}" for key, v in settings.items())])
        return ", ".join(filter(None, (f"`{code}`", self.note)))

    def arguments(self) -> list[str]:
        given = {f"rule.{key}": value for key, value in self.settings.items()} | self._exchange()
        settings = [f"{key}={json.dumps(value)}" for key, value in given.items()]
        words = [word for setting in settings for word in ("--set", setting)]
        return ["-n", str(self.ranks), "--rule", self.rule, *words, *self.options]

    def _exchange(self) -> dict[str, Any]:
        return {f"exchange.{key}": value for key, value in self.exchange.items()}


def show(value: Any) -> str:
    """A value as YAML has it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {show(item)}" for key, item in value.items()) + "}"
    return json.dumps(value) if isinstance(value, bool) else str(value)


CASES = (
    Case("bsp"),
    Case("bsp", exchange={"wire": "bfloat16"}),
    Case("bsp", exchange={"wire": "int8"}),
    Case("average", {"every": 1}),
    Case("average", note="once an epoch"),
    Case("average", {"every": 16}),
    Case("average", {"every": 16}, exchange={"wire": "int8"}),
    Case("average", {"every": 16, "start_after": 400}),
    Case("average", {"every": "2s"}),
    Case("diloco", {"every": 16}, ADAMW, "AdamW"),
    Case("diloco", {"every": 16, "fragments": 4}, ADAMW, "AdamW"),
    Case("easgd", {"every": 10}, PLAIN, "no momentum"),
    Case("easgd", {"every": 10}),
    Case("easgd", {"every": 10}, PAPER, "Nesterov (EAMSGD)"),
    Case("easgd", {"every": 10}, exchange={"overlap": True}),
    Case("easgd", {"every": 10, "synchronous": True}),
    Case("easgd", {"every": 10}, note="3 ranks", ranks=3, exchange={"servers": 1}),
    Case("downpour", {}, PLAIN, "no momentum"),
    Case("downpour", {"synchronous": True}, PLAIN, "no momentum"),
    Case("downpour", {"server_optimizer": "adam"}, PLAIN, "no momentum"),
    Case("downpour", TEN | {"staleness": "agn"}),
    Case("downpour", TEN | {"staleness": "dynsgd"}, PLAIN, "no momentum"),
    Case("gossip", {"probability": 0.1}),
)


def measure(case: Case, data_dir: str | None, epochs: int) -> dict[str, Any]:
    """The row of a case: its name, the outcome, and the history of its epochs."""
    row: dict[str, Any] = {"case": case.name, "rule": case.rule, "ranks": case.ranks}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        data = ["mnist", "--data-dir", data_dir] if data_dir else ["digits"]
        command = [sys.executable, "-m", "paceline", "train", "mnist", *data, *case.arguments()]
        where = ["--run-dir", str(run_dir), "--epochs", str(epochs)]
        done = subprocess.run([*command, *where], capture_output=True, text=True)
        if done.returncode and "TrainingError" in done.stderr:
            return row | {"diverged": True, "epochs": []}
        if done.returncode:
            sys.exit(f"{case.name}: {done.stderr}")
        return row | read_outcome(run_dir)


def read_outcome(run_dir: Path) -> dict[str, Any]:
    outcome = json.loads((run_dir / "summary.json").read_text())
    # What an exchange sends is part of the step in which it falls.
    steps = [event for event in read_events(run_dir / "events") if event["event"] == "step"]
    seconds, epochs = 0.0, []
    for record in History.load(run_dir / "history.jsonl"):
        seconds += record.seconds
        epochs.append({"seconds": seconds, "val_accuracy": record.val_accuracy})
    return {
        "diverged": False,
        "val_accuracy": outcome["val_accuracy"],
        "val_loss": outcome["val_loss"],
        "seconds": seconds,
        "bytes_per_sample": sum(step["bytes"] for step in steps) / outcome["samples"],
        "epochs": epochs,
    }


def render(row: dict[str, Any]) -> str:
    """A line of the table."""
    if row["diverged"]:
        return f"| {row['case']} | diverged | | | |"
    accuracy = f"{100 * row['val_accuracy']:.2f} %"
    rest = f"{row['val_loss']:.4f} | {row['seconds']:.1f} | {row['bytes_per_sample']:,.1f}"
    return f"| {row['case']} | {accuracy} | {rest} |"


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Accuracy over seconds: a panel for each rule, all on the same axes, bsp in each."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # letters as text: a quarter of the size
    from matplotlib import pyplot

    rules = list(dict.fromkeys(row["rule"] for row in rows))
    wide = min(2, len(rules))
    high = -(-len(rules) // wide)
    size = (6.4 * wide, 3.9 * high)
    figure, grid = pyplot.subplots(
        high, wide, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    reference = next((row for row in rows if row["case"] == "`bsp`"), None)
    for axes, rule in zip(grid.flat, rules, strict=False):
        own = [row for row in rows if row["rule"] == rule and row is not reference]
        if reference is not None:
            draw(axes, reference, "black", ".")
        for row, colour, marker in zip(own, COLOURS, MARKERS, strict=False):
            draw(axes, row, colour, marker)
        axes.set_title(rule)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="lower right")
    for axes in list(grid.flat)[len(rules) :]:
        axes.set_visible(False)
    grid[0, 0].set_ylim(lowest_shown(rows), None)
    grid[0, 0].set_xlim(0, None)
    figure.supxlabel("seconds of training")
    figure.supylabel("validation accuracy, %")
    figure.savefig(path)


def draw(axes: Any, row: dict[str, Any], colour: str, marker: str) -> None:
    """A line with a mark at each epoch; the legend names the last, should it lie off the axes."""
    points = [epoch for epoch in row["epochs"] if epoch["val_accuracy"] is not None]
    seconds = [point["seconds"] for point in points]
    accuracies = [100 * point["val_accuracy"] for point in points]
    last = f"{accuracies[-1]:.2f} %" if accuracies else "diverged"
    name = row["case"].replace("`", "").removeprefix(f"{row['rule']}, ")  # the title has it
    label = f"{name}: {last}"
    axes.plot(seconds, accuracies, color=colour, marker=marker, markersize=4, label=label)


def lowest_shown(rows: list[dict[str, Any]]) -> float:
    """Where the accuracies begin: what has not learnt would press all others together."""
    found = [epoch["val_accuracy"] for row in rows for epoch in row["epochs"]]
    ends = [100 * accuracy for accuracy in found if accuracy is not None and accuracy > 0.9]
    return min(ends, default=0.0) - 0.5


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="where the full MNIST lies (default: the digits)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw accuracy over time")
    parser.add_argument("--from", dest="saved", help="rows that --json wrote; nothing is trained")
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    print("| rule | val accuracy | val loss | seconds | bytes per sample |\n|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    if args.saved:
        rows = [row for row in json.loads(Path(args.saved).read_text()) if args.only in row["case"]]
        print("\n".join(map(render, rows)))
    for case in CASES if not args.saved else ():
        if args.only in case.name:
            rows.append(measure(case, args.data_dir, args.epochs))
            print(render(rows[-1]), flush=True)
            if args.json:  # after each: a case that fails must not cost those before it
                Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
