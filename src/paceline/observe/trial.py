"""The progress of a rank, reported to `paceline tune`, which watches its trials from outside."""

from __future__ import annotations

import atexit
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TextIO

from paceline.core.private import open_file, opened_folder
from paceline.observe.history import TimeSplit
from paceline.observe.stopwatch import Stopwatch
from paceline.observe.waiting import RunFacts

TRIAL = "PACELINE_TRIAL"
"""The variable that names the folder of the trial that this rank belongs to."""

EVERY_S = 0.25
_STATUS = Path("/proc/self/status")
_taken = False


class TrialLog:
    """Appends lines of JSON to `folder/rank-0003.jsonl`: at the first step, then 4 times a second.

    A line has the rank's own clock, samples and steps so far, seconds waited of the seconds that
    the loop took, and memory. All but the memory only grow: two lines give a rate.
    """

    def __init__(self, file: TextIO, workers: int) -> None:
        self._file, self._workers = file, workers
        self.facts = RunFacts(own_loop=True)
        """What advice for this program depends on; set it where more is known."""
        self._samples = self._wait_s = self._spent_s = 0.0
        self._steps, self._unit = 0, "samples"
        self._now_s = self._next_s = 0.0
        self._last = TimeSplit()

    def note(self, samples: float, watch: Stopwatch, unit: str = "samples") -> None:
        """A step is done."""
        self._now_s = now = perf_counter()
        self._samples += samples
        self._steps += 1
        if now >= self._next_s:
            self._next_s = now + EVERY_S
            self._unit = unit
            self._accumulate(watch.peek())
            self.write()

    def write(self) -> None:
        """Write the counts at the last step."""
        peak, shared = read_own_memory()
        line = {
            "seconds": self._now_s,
            "samples": self._samples,
            "steps": self._steps,
            "wait_s": self._wait_s,
            "spent_s": self._spent_s,
            "peak_bytes": peak,
            "shared_bytes": shared,
            "workers": self._workers,
            "unit": self._unit,
            "facts": asdict(self.facts),
        }
        with suppress(OSError, ValueError):  # the trial may be over, its folder gone
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def _accumulate(self, split: TimeSplit) -> None:
        """The watch may have been emptied since the last line; what it held then is lost."""
        last, self._last = self._last, split
        if _total(split) < _total(last):
            last = TimeSplit()
        self._wait_s += max(0.0, split.wait - last.wait)
        self._spent_s += _total(split) - _total(last)


def open_trial(rank: int, workers: int) -> TrialLog | None:
    """The log of this rank in a trial; None outside of one.

    Only the first loop of a program that asks gets one: counts of two models would mix. A rank on
    a node that does not see the folder has none; `workers` is how many ranks train.
    """
    global _taken
    folder = os.environ.get(TRIAL)
    if not folder or _taken:
        return None
    try:
        file = _create(Path(folder), f"rank-{rank:04d}.jsonl")
    except OSError:
        return None
    _taken = True
    log = TrialLog(file, workers)
    atexit.register(log.write)
    return log


def _create(folder: Path, name: str) -> TextIO:
    with opened_folder(folder) as opened:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        return os.fdopen(open_file(name, flags, opened), "w", encoding="ascii")


def read_own_memory(status: Path = _STATUS) -> tuple[int, int]:
    """The peak memory of this process in bytes, and how much of it others may share."""
    sizes = {}
    with suppress(OSError):
        for line in status.read_text().splitlines():
            name, _, rest = line.partition(":")
            if rest.endswith(" kB"):
                sizes[name] = 1024 * int(rest.split()[0])
    if "VmHWM" in sizes:
        return sizes["VmHWM"], sizes.get("RssFile", 0) + sizes.get("RssShmem", 0)
    import resource  # not on every system

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most * (1 if sys.platform == "darwin" else 1024), 0


def _total(split: TimeSplit) -> float:
    return split.compute + split.wait + split.communication + split.data
