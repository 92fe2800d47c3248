"""Times, sizes and periods as text, for people and schedulers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.errors import ConfigError

_MEGABYTES = {"M": 1, "G": 1024, "T": 1024**2}


def read_time(text: str) -> int:
    """Seconds, from a time with a unit like `--max-time`, or from D-HH:MM:SS with or without days.

    >>> read_time("90m"), read_time("02:30:00"), read_time("1-12:00:00")
    (5400, 9000, 129600)
    """
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)", text, re.ASCII)
    if clock:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        found = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    else:
        try:
            found = round(Period.parse(text).seconds or 0)
        except ConfigError as error:
            raise ValueError(text) from error
    if found < 1:
        raise ValueError(text)
    return found


def read_memory(text: str) -> int:
    """Megabytes (of 1024 times 1024 bytes).

    >>> read_memory("500M"), read_memory("1.5G")
    (500, 1536)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MGT])B?", text, re.ASCII)
    found = round(float(match[1]) * _MEGABYTES[match[2]]) if match else 0
    if found < 1:
        raise ValueError(text)
    return found


def show_clock(seconds: int) -> str:
    """HH:MM:SS; every scheduler accepts more than 24 hours.

    >>> show_clock(129600)
    '36:00:00'
    """
    minutes, rest = divmod(seconds, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"


_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Period:
    """A number of steps, of seconds, or neither: then only the end of an epoch counts.

    >>> Period.parse(8).is_over(steps=8, seconds=0.1), Period.parse("2m").is_over(3, 90.0)
    (True, False)
    """

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, every: int | str) -> Period:
        """From `epoch`, a number of steps, or a time like "10s", "2m", "1h"."""
        if every == "epoch":
            return cls()
        if isinstance(every, int) and not isinstance(every, bool) and every >= 1:
            return cls(steps=every)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", every) if isinstance(every, str) else None
        if match and float(match[1]) > 0:
            return cls(seconds=float(match[1]) * _SECONDS[match[2]])
        raise ConfigError(
            f'rule.every is {every!r}, expected epoch, a number of steps, or a time as "10s"'
        )

    def is_over(self, steps: int, seconds: float) -> bool:
        """Whether the period is over after so many steps and seconds."""
        if self.steps is not None:
            return steps >= self.steps
        return self.seconds is not None and seconds >= self.seconds


_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def read_bytes(text: str | int) -> int:
    """Bytes, from a number or from text with a unit; K, M, G and T are powers of 1024.

    >>> read_bytes("10GB"), read_bytes("1.5 M"), read_bytes(4096)
    (10737418240, 1572864, 4096)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", str(text), re.ASCII)
    found = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if found < 1:
        raise ValueError('a size as "10GB", or a number of bytes')
    return found


def show_bytes(count: int) -> str:
    """A size as text.

    >>> show_bytes(10737418240), show_bytes(812)
    ('10.0 GB', '812 bytes')
    """
    for unit in ("T", "G", "M", "K"):
        if count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:.1f} {unit}B"
    return f"{count} bytes"
