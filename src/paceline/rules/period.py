"""How often replicas meet: every so many steps or seconds, or once an epoch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.errors import ConfigError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Period:
    """Steps, seconds, or neither: then only the end of an epoch brings the replicas together.

    >>> Period.parse(8).is_over(steps=8, seconds=0.1), Period.parse("2m").is_over(3, 90.0)
    (True, False)
    """

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, every: int | str) -> Period:
        """From `epoch`, a number of steps, or a time as "10s", "2m", "1h"."""
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
        """Whether that many steps and seconds after the last meeting the next one is due."""
        if self.steps is not None:
            return steps >= self.steps
        return self.seconds is not None and seconds >= self.seconds
