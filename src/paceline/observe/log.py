"""Log lines that name the rank."""

import logging
import sys
import time

from paceline.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")


def setup_logging(rank: int, size: int, level: str = "info") -> None:
    """Send the "paceline" logger to stderr as lines like `12:34:56 [rank 3] warning: text`.

    Rank 0 logs for the world: the others log only warnings and errors. The root logger belongs to
    your script and is left alone. A further call replaces the settings of the one before.
    """
    if level not in LEVELS:
        raise ConfigError(f"log level is {level!r}, expected one of {', '.join(LEVELS)}.")
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} in a world of {size}: expected 0 <= rank < size")
    logger = logging.getLogger("paceline")
    for handler in [h for h in logger.handlers if isinstance(h, _RankHandler)]:
        logger.removeHandler(handler)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    logger.setLevel(threshold if rank == 0 else max(threshold, logging.WARNING))
    logger.addHandler(_RankHandler(rank))
    # Otherwise a script that configures the root logger would see every line twice.
    logger.propagate = False


def make_formatter(rank: int) -> logging.Formatter:
    """For lines as `12:34:56 [rank 3] warning: text`."""
    return _RankFormatter(rank)


class _RankHandler(logging.Handler):
    """Write to the current sys.stderr: while a bar is drawn, rich replaces it."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.setFormatter(_RankFormatter(rank))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class _RankFormatter(logging.Formatter):
    """Begin every line, those of a traceback too, with the time, the rank and the level."""

    def __init__(self, rank: int) -> None:
        super().__init__("%(message)s")
        self._rank = rank

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock} [rank {self._rank}] {record.levelname.lower()}: "
        return "\n".join(head + line for line in super().format(record).splitlines() or [""])
