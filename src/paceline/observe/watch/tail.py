"""What a run is doing now, told by the files it writes: looked at again and again."""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import DataError
from paceline.observe.history import EpochRecord, History

_TAIL = 1 << 19
"""Bytes of a log that are read at first: its end."""
_RECENT = 200
"""Steps that a rate is made of."""
_RECENT_S = 20.0


@dataclass
class WorkerState:
    """What the log of one rank says."""

    rank: int
    node: str = ""
    step: int = 0
    heard: float = 0.0
    """When it wrote last, in seconds since 1970."""
    loss: float | None = None
    staleness: float | None = None
    distance: float | None = None
    waiting: float | None = None
    """The share of the last epoch that it waited."""
    steps: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """When each recent step ended, how long it took, and its samples."""

    @property
    def samples_per_s(self) -> float:
        """Over the last steps."""
        recent = [one for one in self.steps if one[0] >= self.heard - _RECENT_S]
        seconds = recent[-1][0] - recent[0][0] + recent[0][1] if recent else 0.0
        return sum(samples for _, _, samples in recent) / seconds if seconds > 0 else 0.0

    @property
    def step_s(self) -> float | None:
        """How long a step takes."""
        recent = [seconds for _, seconds, _ in self.steps]
        return sum(recent) / len(recent) if recent else None

    @property
    def samples_per_step(self) -> float:
        return sum(samples for _, _, samples in self.steps) / max(1, len(self.steps))

    def take(self, event: dict[str, Any]) -> None:
        """What the log says next."""
        self.node, self.heard = event["node"], event["time"]
        self.step = max(self.step, event["step"])
        kind = event["event"]
        if kind == "step":
            self.steps.append((event["time"], event["seconds"] or 0.0, event["samples"]))
            self.loss = event["loss"] if event["loss"] is not None else self.loss
        elif kind == "exchange":
            self.staleness = event.get("staleness", self.staleness)
            self.distance = event.get("distance", self.distance)
        elif kind == "time":
            parts = [event[name] or 0.0 for name in ("compute", "wait", "communication", "data")]
            self.waiting = parts[1] / sum(parts) if sum(parts) > 0 else None


class _Log:
    """The log of one rank, read on from where it ended the last time."""

    def __init__(self, path: Path) -> None:
        self.path, self.worker = path, WorkerState(int(path.stem.removeprefix("rank-")))
        self._at = max(0, path.stat().st_size - _TAIL)
        self._is_whole = self._at == 0

    def read(self) -> list[dict[str, Any]]:
        """Events that have come since."""
        with self.path.open("rb") as file:
            file.seek(self._at)
            text = file.read()
        end = text.rfind(b"\n") + 1
        self._at += end
        lines = text[:end].splitlines()
        if not self._is_whole and lines:  # the first line may have begun before
            lines, self._is_whole = lines[1:], True
        events = []
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                event = json.loads(line)
                self.worker.take(event)
                events.append(event)
        return events


class RunTail:
    """A run as its directory shows it; `look` reads what is new."""

    def __init__(self, path: Path) -> None:
        if not (path / "events").is_dir():
            raise DataError(f"{path} is not a run directory: it has no events. Give that of a run.")
        self.path, self.name = path, path.resolve().name
        self.epochs = _read_epochs(path / "config.yaml")
        self.size: int | None = None
        """Samples of an epoch."""
        self.ranks: int | None = None
        """How many there are since ranks were lost or joined."""
        self.history: list[EpochRecord] = []
        self._logs: dict[Path, _Log] = {}

    def look(self) -> None:
        for path in sorted((self.path / "events").glob("rank-*.jsonl")):
            log = self._logs.get(path)
            if log is None:
                log = self._logs[path] = _Log(path)
                self._read_head(path)
            for event in log.read():
                self._take(event)
        with suppress(DataError):
            self.history = History.load(self.path / "history.jsonl")

    @property
    def workers(self) -> list[WorkerState]:
        """Those of the ranks that train now."""
        known = [log.worker for log in self._logs.values()]
        return known if self.ranks is None else known[: self.ranks]

    @property
    def summary(self) -> dict[str, Any] | None:
        """The outcome, once there is one."""
        with suppress(OSError, ValueError):
            found = json.loads((self.path / "summary.json").read_text())
            return found if isinstance(found, dict) else None
        return None

    @property
    def is_over(self) -> bool:
        """A run that trains holds its directory by this file."""
        return not (self.path / ".running").exists()

    @property
    def heard(self) -> float:
        """When the last rank wrote something."""
        return max((worker.heard for worker in self.workers), default=0.0)

    @property
    def samples_per_s(self) -> float:
        return sum(worker.samples_per_s for worker in self.workers)

    @property
    def loss(self) -> float | None:
        """The mean of what ranks said last."""
        found = [worker.loss for worker in self.workers if worker.loss is not None]
        return sum(found) / len(found) if found else None

    @property
    def samples(self) -> float:
        """About how many samples all have had; the history knows those of whole epochs."""
        whole = sum(record.samples for record in self.history)
        if self.size is None:
            return float(whole)
        counted = sum(worker.step * worker.samples_per_step for worker in self.workers)
        return float(min(max(whole, counted), whole + self.size))

    @property
    def left_s(self) -> float | None:
        """Seconds to the end of the run at this pace, None if nobody can know."""
        rate = self.samples_per_s
        if self.size is None or self.epochs is None or rate <= 0:
            return None
        return max(0.0, self.epochs * self.size - self.samples) / rate

    def _read_head(self, path: Path) -> None:
        """Of a long log only the end is read, but how the run began stands first."""
        with path.open("rb") as file:
            for _, line in zip(range(5), file, strict=False):
                with suppress(ValueError, KeyError, TypeError):
                    self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        if event.get("event") == "generation":
            self.size, self.ranks = event.get("samples_per_epoch"), event.get("ranks")


def _read_epochs(path: Path) -> int | None:
    """The setting, which stands in a line of its own."""
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith("epochs:"):
                return int(line.removeprefix("epochs:"))
    return None
