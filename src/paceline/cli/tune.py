"""`paceline tune`: find the best number of ranks and threads."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.cli.inner_command import after_separator, parse_inner
from paceline.cluster.cores import available_cores
from paceline.cluster.detect import detect
from paceline.cluster.hosts import Host, parse_hosts, read_hostfile
from paceline.cluster.schedulers import read_allocation
from paceline.errors import LaunchError
from paceline.observe import write_atomically
from paceline.tools.bench.rows import check_plot
from paceline.tools.tune.command import TrialCommand
from paceline.tools.tune.plan import Capacity, plan
from paceline.tools.tune.report import draw, plain, render_advice, render_notes, render_table
from paceline.tools.tune.search import Search, best_of, describe_load, write_progress
from paceline.tools.tune.trial import Outcome, Stopped, TrialLimits, run_trial, stoppable
from paceline.training.run_dir import check_writable

_PASSED_ON = ("hosts", "hostfile", "launcher")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "tune",
        description="Try a command on several numbers of ranks and threads, a few seconds each, "
        "also on more ranks than cores: if examples are uneven, those fill the gaps. Shows "
        "samples/s, waiting and memory of each, the command to use, and what would make it faster. "
        "Example: paceline tune -- train mnist",
        usage="paceline tune [--ranks 1,2,4] [--threads 1,2] [--seconds S] [--all] [--plot FILE] "
        "[--json FILE] [--hosts A:16,B:16] -- train ... | run ...",
        epilog="A trial is the real command, ended when enough is known; of `train` it saves "
        "nothing. A script is measured by its steps under keep_pace or Trainer, else by its "
        "duration. Exit code: 0 measured, 1 all trials failed, 130 interrupted.",
    )
    parser.add_argument(
        "--ranks",
        type=_numbers,
        metavar="LIST",
        help="numbers of ranks to try (default: 1, 2, 4, ... the cores, and up to twice that)",
    )
    parser.add_argument(
        "--threads",
        type=_numbers,
        metavar="LIST",
        help="numbers of threads per rank to try with each (default: cores / ranks)",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=10.0,
        metavar="S",
        help="how long to measure each, after start-up, at most (default 10)",
    )
    parser.add_argument(
        "--all", action="store_true", help="measure all in full, even those that cannot win"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the figures (.png, .svg or .pdf)")
    parser.add_argument("--json", metavar="FILE", help="write the figures for scripts")
    for name in _PASSED_ON:
        parser.add_argument(f"--{name}", metavar=name.upper(), help="passed on to the command")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="train ... or run ..."
    )
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    if detect().launched:
        raise LaunchError("tune starts the ranks itself; call it once, not under mpirun or srun")
    command = read_command(args.words, {name: getattr(args, name) for name in _PASSED_ON})
    if args.plot is not None:
        check_plot(args.plot)
    for path in filter(None, (args.json, args.plot)):
        check_writable(Path(path))
    capacity = _find_capacity(args)
    limits = TrialLimits.of(args.seconds, args.all)
    search = Search(
        lambda setting, best: run_trial(command, setting, limits, best),
        capacity.cores,
        thorough=args.all,
        grow=args.ranks is None and capacity.most_ranks is None,
    )
    busy = describe_load(os.getloadavg()[0], available_cores())
    if busy is not None:
        write_progress(f"{busy}\n")
    code = 0
    try:
        with stoppable():
            search.run(plan(capacity, args.ranks, args.threads))
    except Stopped as stop:
        code = 128 + stop.number
    return _report(args, command, search.outcomes, capacity.cores) or code


def read_command(words: Sequence[str], passed_on: dict[str, str | None]) -> TrialCommand:
    """The command behind `--`, checked by its own parser."""
    words = after_separator(words)
    extra = [word for name, value in passed_on.items() if value for word in (f"--{name}", value)]
    parsed = parse_inner([*words[:1], *extra, *words[1:]])
    if parsed is None:
        found = f"found {words[0]!r}" if words else "found nothing"
        raise LaunchError(
            f"tune needs a command to try, {found}: paceline tune -- train mnist, or "
            "paceline tune -- run -- script.py"
        )
    if parsed.ranks is not None or parsed.threads is not None:
        raise LaunchError(
            "tune chooses the ranks and threads; omit -n and --threads after the --, and name "
            "those to try before it: paceline tune --ranks 1,2,4 --threads 1,2 -- ..."
        )
    script: list[str] = []
    options = [*extra, *words[1:]]
    if words[0] == "run":
        script = [parsed.script, *parsed.arguments]
        before = options[: len(options) - len(script)]
        options = before[:-1] if before[-1:] == ["--"] else before
    return TrialCommand(
        words[0],
        tuple(options),
        tuple(script),
        on_hosts=bool(parsed.hosts or parsed.hostfile),
    )


def _find_capacity(args: argparse.Namespace) -> Capacity:
    """The cores that ranks share: this machine's, or those of named or granted hosts."""
    here, threads = available_cores(), 1
    hosts: tuple[Host, ...] = ()
    named = bool(args.hosts or args.hostfile)
    if named:
        hosts = parse_hosts(args.hosts) if args.hosts else read_hostfile(Path(args.hostfile))
    elif (allocation := read_allocation()) is not None:
        hosts, threads = allocation.hosts, allocation.threads or 1
    slots = [here if host.slots is None else host.slots * threads for host in hosts] or [here]
    return Capacity(sum(slots), min(slots), sum(slots) if named else None)


def _report(
    args: argparse.Namespace, command: TrialCommand, outcomes: list[Outcome], cores: int
) -> int:
    """Write the results; return 1 if all trials failed, else 0."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    best = best_of(outcomes)
    if failed and not any(outcome.estimate for outcome in outcomes):
        sys.stderr.write(failed[0].errors or f"paceline: {failed[0].reason}\n")
        if len(failed) == len(outcomes):
            sys.stderr.write("paceline: no setting could be measured; the first error is above\n")
            return 1
    sys.stdout.write(render_table(outcomes) + render_notes(outcomes))
    if best is not None:
        sys.stdout.write(f"\nuse: {command.shown(best.setting)}\n")
    sys.stdout.write(render_advice(outcomes, cores))
    sys.stdout.flush()
    if args.json is not None:
        write_atomically(
            Path(args.json), json.dumps(plain(outcomes, command, cores), indent=1) + "\n"
        )
    if args.plot is not None:
        draw(outcomes, Path(args.plot))
    return 0


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers of 1 or more: 1,2,4")
    return sorted({int(part) for part in parts})


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.5 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time from 0.5 to 3600 seconds")
    return value
