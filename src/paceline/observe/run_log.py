"""log.txt in the run directory: what the terminal showed, for when the terminal is gone."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from paceline.errors import RanksLost
from paceline.observe.history import EpochRecord
from paceline.observe.log import make_formatter
from paceline.observe.numbers import Course
from paceline.observe.progress import Progress

LOG = "log.txt"


class RunLog:
    """Appends lines; those that ranks log, too. A full disk ends no run."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        self._path, self._rank = run_dir / LOG, rank
        self._handler = _LogHandler(self)
        self._handler.setFormatter(make_formatter(rank))

    def write(self, text: str) -> None:
        """Each write is one, so that lines of several ranks do not mix."""
        with suppress(OSError, ValueError), self._path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line.rstrip()}\n" for line in text.splitlines()))

    def __enter__(self) -> RunLog:
        logger = logging.getLogger("paceline")
        for other in [h for h in logger.handlers if isinstance(h, _LogHandler)]:
            logger.removeHandler(other)  # of ranks that are threads of this process
        logger.addHandler(self._handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        logging.getLogger("paceline").removeHandler(self._handler)
        if error is not None and not isinstance(error, RanksLost):
            clock = time.strftime("%H:%M:%S")
            self.write(f"{clock} [rank {self._rank}] {type(error).__name__}: {error}")


class _LogHandler(logging.Handler):
    def __init__(self, log: RunLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write(self.format(record))


class LoggedProgress:
    """Shows what it is told, and keeps it; not what changes with every step."""

    def __init__(self, shown: Progress, log: RunLog) -> None:
        self._shown, self._log = shown, log
        self._course = Course(epochs=0, samples_per_epoch=None)
        self.update = shown.update

    def begin(self, epochs: int, samples_per_epoch: int | None, description: str) -> None:
        self._course = Course(epochs, samples_per_epoch)
        self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{description}")
        self._shown.begin(epochs, samples_per_epoch, description)

    def message(self, text: str) -> None:
        self._log.write(text)
        self._shown.message(text)

    def epoch_end(self, record: EpochRecord) -> None:
        self._log.write(self._course.describe_epoch(record))
        self._shown.epoch_end(record)

    def close(self) -> None:
        self._shown.close()
