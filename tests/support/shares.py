"""How long tests take, in which order they run, and which share of the rest a CI run takes.

`make test` runs the core. What it leaves out (marked slow or clusters) is divided into four shares,
file by file, and each CI run takes the share after the one that tests/durations.json names. That
file is kept from run to run:

    python tests/support/shares.py next        # the share whose turn it is
    python tests/support/shares.py record      # take over what the last runs measured, and show it
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
RECORD = REPOSITORY / "tests" / "durations.json"
MEASURED = REPOSITORY / "build" / "tests"
"""Where runs leave a file each of what they measured."""
SHARES = 4
LANES = {
    "tests/e2e/test_bench_link.py": "clusters",
    "tests/mpi/": "jobs",
    "tests/e2e/": "jobs",
    "tests/clusters/": "clusters",
    "tests/process/": "processes",
}
"""Folders whose tests start processes: one worker runs all of a lane, one after the other, so that
no two jobs of MPI compete; nor does traffic between hosts of one test with that of another, which
loses packets then. The first that fits counts."""


def is_left_out(marks: Iterable[str]) -> bool:
    """Whether a test with these marks is none of the core.

    >>> is_left_out(["timeout"]), is_left_out(["timeout", "slow"])
    (False, True)
    """
    return not {"slow", "clusters"}.isdisjoint(marks)


def lane_of(file: str) -> str:
    """Tests of one lane run on one worker, in order.

    >>> lane_of("tests/mpi/test_faults.py"), lane_of("tests/unit/test_vectors.py")
    ('jobs', 'tests/unit/test_vectors.py')
    >>> lane_of("tests/e2e/test_bench_link.py"), lane_of("tests/e2e/test_bench.py")
    ('clusters', 'jobs')
    """
    return next((lane for folder, lane in LANES.items() if file.startswith(folder)), file)


def order_of(file: str, record: Mapping[str, Mapping[str, float]]) -> tuple[int, float, str]:
    """The key to sort files by: the long lanes first, so that no worker is left with one."""
    lane = lane_of(file)
    if lane != file:
        return ("jobs", "clusters", "processes").index(lane), 0.0, file
    seconds = record.get(file, {})
    return 3, -(seconds.get("core", 0.0) + seconds.get("rest", 0.0)), file


def share_of(file: str, record: Mapping[str, Mapping[str, float]]) -> int:
    """The share of a file's tests that are left out: as recorded, else by its name.

    >>> share_of("tests/a.py", {"tests/a.py": {"share": 3}})
    3
    """
    share = record.get(file, {}).get("share")
    return zlib.crc32(file.encode()) % SHARES if share is None else int(share)


def read_record() -> dict[str, dict[str, float]]:
    """By file: seconds of its core, seconds of the rest, and the share that runs the rest."""
    return dict(json.loads(RECORD.read_text())["files"]) if RECORD.exists() else {}


def merge(
    record: dict[str, dict[str, float]], measured: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """The record with new figures. A file keeps its share, so that four runs see all of them; a
    new one gets the share that has the least to do in the file's lane.

    >>> merge({"a": {"rest": 9.0, "share": 0}}, {"b": {"core": 1.0, "rest": 2.0}})["b"]
    {'core': 1.0, 'rest': 2.0, 'share': 1}
    """
    merged = {file: dict(figures) for file, figures in record.items()}
    for file, figures in measured.items():
        merged.setdefault(file, {}).update(figures)
    load: Counter[tuple[str, float]] = Counter()
    for file, figures in merged.items():
        if "share" in figures:
            load[_lane(file), figures["share"]] += figures.get("rest", 0.0)
    new = [file for file, figures in merged.items() if "rest" in figures and "share" not in figures]
    for file in sorted(new, key=lambda file: -merged[file]["rest"]):
        lane, figures = _lane(file), merged[file]
        figures["share"] = min(range(SHARES), key=lambda share: load[lane, share])
        load[lane, figures["share"]] += figures["rest"]
    return merged


def _lane(file: str) -> str:
    lane = lane_of(file)
    return lane if lane in LANES.values() else "others"


def next_share() -> int:
    """The one after the last that was recorded; commits since then count, too, so that the shares
    go round where nobody records anything."""
    return (_last_share() + 1 + _commits_since_record()) % SHARES


def _last_share() -> int:
    return int(json.loads(RECORD.read_text())["last_share"]) if RECORD.exists() else -1


def _commits_since_record() -> int:
    git = ["git", "-C", str(REPOSITORY)]
    last = subprocess.run(
        [*git, "log", "-1", "--format=%H", "--", str(RECORD)], capture_output=True, text=True
    ).stdout.strip()
    if not last:
        return 0
    count = [*git, "rev-list", "--count", f"{last}..HEAD"]
    return int(subprocess.run(count, capture_output=True, text=True).stdout.strip() or 0)


def main(command: str) -> None:
    if command == "next":
        print(next_share())
        return
    record, last = read_record(), _last_share()
    for path in sorted(MEASURED.glob("*.json")):
        measured = json.loads(path.read_text())
        record = merge(record, measured["files"])
        last = last if measured["share"] is None else measured["share"]
    record = {file: figures for file, figures in record.items() if (REPOSITORY / file).exists()}
    ordered = {file: record[file] for file in sorted(record)}
    RECORD.write_text(json.dumps({"last_share": last, "files": ordered}, indent=1) + "\n")
    _show(ordered)


def _show(record: Mapping[str, Mapping[str, float]]) -> None:
    print("seconds by file (core: make test; rest: what it leaves out, and whose share that is)")
    total = {"core": 0.0, "rest": 0.0}
    rows = [(f.get("core", 0.0), f.get("rest", 0.0), f, file) for file, f in record.items()]
    for core, rest, figures, file in sorted(rows, key=lambda row: -row[0] - row[1]):
        total = {"core": total["core"] + core, "rest": total["rest"] + rest}
        if core + rest >= 5:
            print(f"{core:8.1f} {rest:8.1f}  {figures.get('share', '-')}  {file}")
    print(f"{total['core']:8.1f} {total['rest']:8.1f}     all, of one worker")
    for share in range(SHARES):
        parts = [f.get("rest", 0.0) for f in record.values() if f.get("share") == share]
        print(f"{'':8} {sum(parts):8.1f}  {share}  of {len(parts)} files")


if __name__ == "__main__":
    main(sys.argv[1])
