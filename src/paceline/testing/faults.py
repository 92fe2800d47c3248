"""A fault: what goes wrong, on which rank and at which step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from paceline.config.messages import show
from paceline.errors import ConfigError

KINDS = ("exception", "sigkill", "sigstop", "hang", "exit", "nan", "disk-full", "delay", "drop")
MOMENTS = (
    "after", "before", "moving", "pushing", "serving", "validation", "saving", "recovery", "end"
)  # fmt: skip
_FORM = (
    f"expected KIND:rank=R,step=S with a kind of {', '.join(KINDS)}; "
    f"delay also takes seconds=S and steps=N, exit code=C, sigkill at={'|'.join(MOMENTS)}"
)


@dataclass(frozen=True)
class Fault:
    """One fault that occurs once; see `Inject` for what each kind does.

    >>> Fault.parse("delay:rank=1,step=5,seconds=0.5")
    Fault(kind='delay', rank=1, step=5, seconds=0.5, code=0, steps=1, at='after')
    """

    kind: str
    """exception, sigkill, sigstop, hang, exit, nan, disk-full, delay or drop."""
    rank: int
    step: int
    """Steps of that rank, counted from 1."""
    seconds: float = 2.0
    """How long a delay lasts."""
    code: int = 0
    """The exit code of an exit."""
    steps: int = 1
    """In how many steps a delay occurs, one after the other."""
    at: str = "after"
    """When a sigkill strikes: before or after the step, while the ranks of a node move their common
    parameters (moving), when this rank has sent its second message since then (pushing), as it
    serves its so many-th request, with the answer not sent (serving), in the first validation or
    checkpoint since that step, in a recovery, or at the end of the run."""

    def __post_init__(self) -> None:
        wrong = list(self._wrong())
        if wrong:
            raise ConfigError(f"fault: {'; '.join(wrong)}")

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read a fault from a command line, for example "sigkill:rank=1,step=5"."""
        kind, _, rest = text.partition(":")
        values: dict[str, Any] = {}
        wrong: list[str] = []
        for pair in filter(None, rest.split(",")):
            key, _, value = map(str.strip, pair.partition("="))
            try:
                if key in values:
                    wrong.append(f"{key} is given twice")
                values[key] = _READ[key](value)
            except KeyError:
                wrong.append(f"{show(key)} is not a key (valid: {', '.join(_READ)})")
            except ValueError:
                wrong.append(f"{key} is {show(value)}, expected a number")
                values[key] = None
        wrong += [f"{key} is missing" for key in ("rank", "step") if key not in values]
        if not wrong:
            try:
                return cls(kind.strip(), **values)
            except ConfigError as error:
                wrong.append(str(error).removeprefix("fault: "))
        elif kind.strip() not in KINDS:
            wrong.insert(0, _unknown(kind.strip()))
        raise ConfigError(f"fault {show(text)}: {'; '.join(wrong)}; {_FORM}")

    def __str__(self) -> str:
        """As `parse` reads it."""
        given = [f for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return f"{self.kind}:" + ",".join(f"{f.name}={getattr(self, f.name)}" for f in given)

    def _wrong(self) -> Iterator[str]:
        if self.kind not in KINDS:
            yield _unknown(self.kind)
        if self.rank < 0:
            yield f"rank is {self.rank}, expected 0 or more"
        if self.step < 1:
            yield f"step is {self.step}, expected 1 or more"
        if not 0 <= self.seconds < math.inf:
            yield f"seconds is {self.seconds}, expected 0 or more"
        if not 0 <= self.code <= 255:
            yield f"code is {self.code}, expected 0 to 255"
        if self.at not in MOMENTS:
            yield f"at is {show(self.at)}, expected one of {', '.join(MOMENTS)}"
        elif self.at != "after" and self.kind != "sigkill":
            yield f"at is {self.at}, which is for sigkill"
        if self.steps < 1:
            yield f"steps is {self.steps}, expected 1 or more"


_READ = {"rank": int, "step": int, "seconds": float, "code": int, "steps": int, "at": str}


def _unknown(kind: str) -> str:
    return f"kind is {show(kind)}, expected one of {', '.join(KINDS)}"
