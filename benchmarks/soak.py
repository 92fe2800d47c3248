"""Kill training runs at random moments, resume them until they are done, and look what came out.

    python benchmarks/soak.py --runs 100

Each run is `paceline train ... --checkpoint-every ... --resume auto`, started again with the same
command whenever somebody was killed. The victim is a rank, mpirun or the launcher, the moment is
drawn over the length of a run, and so is whether it is killed again. A synchronous rule must end
with the parameters of the run that was never killed, bit for bit; the others with its accuracy. A
run that neither ends nor fails in time is a hang. Whatever is left behind is counted, too.

    python benchmarks/soak.py --elastic --ranks 6 --runs 25

Here a run loses one rank after the other, at random moments, until one is left. It must end by
itself, with exit code 0, the accuracy of the undisturbed run, and events that prove that every
sample was used once in each epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

RULES = {
    "bsp": (["--rule", "bsp"], True),
    "bsp-unshared": (["--rule", "bsp", "--set", "exchange.share=false"], True),
    "average": (["--rule", "average", "--set", "rule.every=7"], True),
    "diloco": (["--rule", "diloco", "--set", "rule.every=7"], True),
    "easgd": (["--rule", "easgd", "--set", "rule.every=4"], False),
    "downpour": (["--rule", "downpour"], False),
    "easgd-server": (
        ["--rule", "easgd", "--set", "rule.every=4", "--set", "exchange.servers=1"],
        False,
    ),
    "downpour-server": (["--rule", "downpour", "--set", "exchange.servers=1"], False),
    "gossip": (["--rule", "gossip"], False),
}
"""Their settings, and whether they repeat bit for bit."""

LASTING = ["--checkpoint-every", "23", "--resume", "auto", "--set", "events_every=0"]
ELASTIC = ["--elastic"]
DEADLINE_S = 120.0
MOST_STARTS = 12
SLACK = 0.02
"""By which the accuracy of an asynchronous rule may be lower than undisturbed."""


@dataclass
class Outcome:
    """What became of the runs of one rule."""

    rule: str
    runs: int = 0
    starts: int = 0
    kills: int = 0
    resumed: int = 0
    wrong: int = 0
    hangs: int = 0
    left_behind: int = 0
    seconds: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=100, help="for each rule (default 100)")
    parser.add_argument("--rules", nargs="*", default=list(RULES), choices=list(RULES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--elastic", action="store_true", help="kill ranks, and let the others go on"
    )
    parser.add_argument(
        "--model",
        default=f"{Path(__file__).with_name('soak_model.py')}:build",
        help="what is trained (default: a small network in numpy); torch models share parameters",
    )
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1, help="of moments and victims (default 1)")
    parser.add_argument("--json", metavar="FILE", help="write the outcomes, as they come")
    args = parser.parse_args()
    outcomes = []
    for rule in args.rules:
        with tempfile.TemporaryDirectory(prefix="paceline-soak-") as folder:
            outcomes.append(_soak(rule, args, Path(folder)))
        print(_line(outcomes[-1]), flush=True)
        if args.json:
            Path(args.json).write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")
    bad = sum(o.wrong + o.hangs + o.left_behind for o in outcomes)
    print("all ended well" if not bad else f"{bad} did not end well")
    return int(bad > 0)


def _line(o: Outcome) -> str:
    return (
        f"{o.rule:10} {o.runs} runs, {o.starts} starts, {o.kills} kills, "
        f"{o.resumed} resumed from a checkpoint, {o.wrong} wrong, {o.hangs} hangs, "
        f"{o.left_behind} left something behind, {o.seconds:.0f} s"
    )


def _soak(rule: str, args: argparse.Namespace, folder: Path) -> Outcome:
    chance = random.Random(f"{args.seed} {rule}")
    settings, exact = RULES[rule]
    began = time.monotonic()
    reference = folder / "reference"
    settings = [args.model, "digits", "--epochs", str(args.epochs), *settings]
    settings = [*settings, *(ELASTIC if args.elastic else LASTING)]
    exact = exact and not args.elastic
    train = _train_elastic if args.elastic else _train_to_the_end
    command, silent = _command(settings, args.ranks, reference), subprocess.DEVNULL
    code = subprocess.run(command, stdout=silent, timeout=DEADLINE_S).returncode
    assert code == 0, f"the undisturbed run of {rule} failed"
    length_s = time.monotonic() - began
    expected, outcome = _result(reference), Outcome(rule)
    for number in range(args.runs):
        run_dir = folder / f"run{number}"
        launchers: list[int] = []
        try:
            train(settings, args.ranks, run_dir, length_s, chance, outcome, launchers)
            right = _is_right(_result(run_dir), expected, exact)
            outcome.wrong += not (right and (not args.elastic or _is_proven(run_dir)))
        except subprocess.TimeoutExpired:
            outcome.hangs += 1
        outcome.left_behind += _is_left_behind(launchers)
        outcome.runs += 1
        if sys.stderr.isatty() or outcome.runs % 10 == 0:
            print(f"{_line(outcome)} so far", file=sys.stderr, flush=True)
        shutil.rmtree(run_dir, ignore_errors=True)
    outcome.seconds = time.monotonic() - began
    return outcome


def _command(settings: list[str], ranks: int, run_dir: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "paceline", "train", *settings, "-n", str(ranks)),
        *("--threads", "1", "--progress", "off", "--run-dir", str(run_dir)),
    ]  # fmt: skip


def _train_to_the_end(settings, ranks, run_dir, length_s, chance, outcome, launchers) -> None:
    command = _command(settings, ranks, run_dir)
    for start in range(MOST_STARTS):
        doomed = start == 0 or (start < MOST_STARTS - 3 and chance.random() < 0.5)
        outcome.starts += 1
        outcome.resumed += any((run_dir / "checkpoints").glob("step-*"))
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        launchers.append(process.pid)
        try:
            if doomed:
                try:
                    process.wait(timeout=chance.uniform(0.3, 0.95) * length_s)
                except subprocess.TimeoutExpired:
                    outcome.kills += _kill_somebody(process.pid, chance)
            if process.wait(timeout=DEADLINE_S) == 0:
                return
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    raise subprocess.TimeoutExpired(command, DEADLINE_S)


def _train_elastic(settings, ranks, run_dir, length_s, chance, outcome, launchers) -> None:
    """One run, whose ranks are killed one by one."""
    command, log = _command(settings, ranks, run_dir), run_dir.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    launchers.append(process.pid)
    outcome.starts += 1
    try:
        end = time.monotonic() + DEADLINE_S
        while not any(run_dir.glob("events/*.jsonl")) and time.monotonic() < end:
            time.sleep(0.05)
        for _ in range(ranks - 1):
            try:
                process.wait(timeout=chance.uniform(0.0, 0.6))
                break
            except subprocess.TimeoutExpired:
                outcome.kills += kill_rank(process.pid, chance)
        code = process.wait(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if code:
        print(f"{run_dir.name}: exit code {code}\n{log.read_text()[-2000:]}", file=sys.stderr)
        raise subprocess.TimeoutExpired(command, DEADLINE_S)


def kill_rank(launcher: int, chance: random.Random) -> bool:
    """One of the ranks that are left."""
    family = [str(pid) for pid in _descendants(launcher)]
    ranks = [pid for pid in family if "OMPI_COMM_WORLD_RANK=" in _environ(_proc(pid))]
    alive = [pid for pid in ranks if _is_alive(pid)]
    if len(alive) < 2:
        return False
    try:
        os.kill(int(chance.choice(alive)), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _proc(pid: str) -> Path:
    return Path("/proc", pid, "environ")


def _is_alive(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _is_proven(run_dir: Path) -> bool:
    check = [sys.executable, "-m", "paceline", "events", "check", str(run_dir)]
    done = subprocess.run(check, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode:
        print(f"{run_dir.name}: {done.stdout}{done.stderr}", file=sys.stderr)
    return done.returncode == 0


def _kill_somebody(launcher: int, chance: random.Random) -> bool:
    """The launcher, mpirun or a rank: any process that descends from the launcher."""
    family = [launcher, *_descendants(launcher)]
    victim = chance.choice(family)
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, ahead = [], [pid]
    while ahead:
        more = children.get(ahead.pop(), [])
        found += more
        ahead += more
    return sorted(found)


def _is_left_behind(launchers: list[int]) -> bool:
    """Whether memory or processes of these jobs are there when all had time to go."""
    end = time.monotonic() + 10
    while any(any(Path("/dev/shm").glob(f"paceline-{pid}-*")) for pid in launchers):
        if time.monotonic() > end:
            return True
        time.sleep(0.1)
    return any(
        f"/paceline-{pid}-" in _environ(entry) for pid in launchers for entry in _processes()
    )


def _processes() -> list[Path]:
    return list(Path("/proc").glob("[0-9]*/environ"))


def _environ(entry: Path) -> str:
    try:
        return entry.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _result(run_dir: Path) -> tuple[bytes, float]:
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "model.npz"
        export = [sys.executable, "-m", "paceline", "export", str(run_dir), str(plain)]
        subprocess.run(export, check=True, capture_output=True, timeout=DEADLINE_S)
        with np.load(plain) as model:
            parameters = b"".join(model[name].tobytes() for name in sorted(model))
    summary = json.loads((run_dir / "summary.json").read_text())
    return parameters, summary["val_accuracy"]


def _is_right(found: tuple[bytes, float], expected: tuple[bytes, float], exact: bool) -> bool:
    return found[0] == expected[0] if exact else found[1] >= expected[1] - SLACK


if __name__ == "__main__":
    sys.exit(main())
