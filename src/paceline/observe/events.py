"""What each rank did and when: one file of JSON lines per rank."""

import contextlib
import errno
import json
import logging
import os
import time
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any, Self, TextIO

from paceline.core.files import json_safe
from paceline.core.regular_files import NOT_REGULAR
from paceline.errors import ConfigError, DataError

FLUSH_EVERY_S = 1.0
BUFFER_BYTES = 1 << 16
_OWN_KEYS = frozenset({"time", "rank", "node", "start", "generation"})
_log = logging.getLogger("paceline.observe")


class EventLog:
    """Append the events of one rank to `directory/rank-0003.jsonl`.

    Every line has the keys time (unix), rank, node, event, step, seconds, loss, samples and bytes,
    then whatever else `write` was given. Without a directory, or once closed, nothing is written.
    A directory that already holds this rank's file is continued, as a resumed run needs it.

    >>> with EventLog(None, rank=0, node="n01") as log:
    ...     log.write("step", step=1, seconds=0.012, loss=2.3, samples=64)
    """

    def __init__(
        self,
        directory: Path | None,
        rank: int,
        node: str,
        every_s: float = FLUSH_EVERY_S,
        generation: int | None = None,
        start: int | None = None,
    ) -> None:
        """`every_s`: how often what is buffered goes to the file; 0: each event at once. Every line
        also says with which start of the run it came, and the generation of an elastic world."""
        self._every_s = every_s
        self._file: TextIO | None = None
        self._heads: dict[str, str] = {}
        known = {"start": start, "generation": generation}
        which = "".join(f', "{key}": {n:d}' for key, n in known.items() if n is not None)
        self._origin = f', "rank": {rank:d}, "node": {json.dumps(node)}{which}, "event": '
        self._flush_at = time.monotonic() + every_s
        if directory is not None:
            self._file = _open_log(Path(directory) / f"rank-{rank:04d}.jsonl")

    def write(
        self,
        event: str,
        *,
        step: int = 0,
        seconds: float = 0.0,
        loss: float | None = None,
        samples: int = 0,
        bytes: int = 0,
        **more: object,
    ) -> None:
        """Add one event; NaN and infinity are written as null."""
        if self._file is None:
            return
        # Formatted by hand: json.dumps of the whole event would cost several times as much,
        # and this is called every step.
        head = self._heads.get(event) or self._make_head(event)
        line = (
            f'{{"time": {time.time():.6f}{head}, "step": {step:d}, "seconds": {_number(seconds)}, '
            f'"loss": {_number(loss)}, "samples": {samples:d}, "bytes": {bytes:d}'
        )
        if more:
            line += _extra_keys(more)
        try:
            self._file.write(line + "}\n")
        except OSError as error:
            self._give_up(error)
        if time.monotonic() >= self._flush_at:
            self.flush()

    def flush(self) -> None:
        """Hand what is buffered to the file now; `write` does so about once a second."""
        self._flush_at = time.monotonic() + self._every_s
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Write what is buffered and close the file; a second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._warn(file, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _make_head(self, event: str) -> str:
        head = self._heads[event] = self._origin + json.dumps(event)
        return head

    def _give_up(self, error: OSError) -> None:
        # A full disk must not end a training run: warn once and continue.
        file, self._file = self._file, None
        if file is not None:
            self._warn(file, error)
            # Closing flushes again, which fails for the reason just reported.
            with contextlib.suppress(OSError):
                file.close()

    @staticmethod
    def _warn(file: TextIO, error: OSError) -> None:
        _log.warning("no more events are written to %s: %s", file.name, error.strerror)


def read_events(directory: Path) -> list[dict[str, Any]]:
    """Return the events of all ranks, oldest first; a line torn by a killed rank is dropped."""
    directory = Path(directory)
    if not directory.is_dir():
        raise DataError(f"No directory {directory} to read events from. Give a run's directory.")
    events = [event for path in sorted(directory.glob("rank-*.jsonl")) for event in _read(path)]
    return sorted(events, key=lambda event: event["time"])


def _read(path: Path) -> Iterator[dict[str, Any]]:
    # Only a line that ends in a newline is whole: the rest is still being written, or was torn.
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict) or "time" not in event:
            raise DataError(
                f"{path}, line {number} is {line[:40]!r}, expected one event as a JSON object "
                "with a time. Remove that line."
            )
        yield event


def _open_log(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_fifo():  # opening it would wait for a reader
            raise OSError(errno.EINVAL, NOT_REGULAR)
        _cut_torn_line(path)
        return path.open("a", buffering=BUFFER_BYTES, encoding="ascii", newline="\n")
    except OSError as error:
        raise ConfigError(
            f"Cannot write events to {path}: {error.strerror}. Choose a run directory that you "
            "can write to."
        ) from error


def _cut_torn_line(path: Path) -> None:
    """Drop what a killed rank left of its last line, so that the next event starts a line."""
    if not path.is_file():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        newline = -1
        # Backwards by blocks, since the log of a long run is too long to read whole.
        while newline < 0 < end:
            start = max(0, end - BUFFER_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            end = start
        file.truncate(end + newline + 1)


def _number(value: float | None) -> str:
    # float() because numpy scalars print their type; repr because it loses no digit.
    return repr(float(value)) if value is not None and isfinite(value) else "null"


def _extra_keys(more: dict[str, object]) -> str:
    if clash := sorted(_OWN_KEYS & more.keys()):
        raise ValueError(f"an event cannot set {', '.join(clash)}: the log writes them itself")
    return "".join(f", {json.dumps(key)}: {json.dumps(json_safe(more[key]))}" for key in more)
