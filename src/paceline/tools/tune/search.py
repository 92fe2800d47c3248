"""One trial after another, skipping settings that cannot win any more."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.cluster.memory import read_memory, read_memory_limit
from paceline.tools.tune.plan import RankSetting, Speed, beyond, why_not
from paceline.tools.tune.trial import Outcome, Stopped

_AS_GOOD = 0.97
"""Of the highest rate: two trials of one setting differ by this much."""
_WRONG_SETTINGS = 2

Measure = Callable[[RankSetting, float | None], Outcome]
"""Runs a trial, given the best rate so far."""


@dataclass
class Search:
    """Measures settings in turn; `outcomes` has the results, also after an interruption."""

    measure: Measure
    cores: int
    thorough: bool = False
    """Skip nothing, and add nothing."""
    grow: bool = True
    """Try more ranks than planned if the most were fastest."""
    free_bytes: Callable[[], int | None] = lambda: free_memory()
    say: Callable[[str], None] = lambda text: write_progress(text)
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self, settings: Sequence[RankSetting]) -> None:
        """Measure all of them that might win."""
        waiting = list(settings)
        while waiting and not self._is_hopeless():
            self._try(waiting.pop(0), len(waiting))
            if not waiting and self.grow and not self.thorough:
                more = beyond(self._speeds(), self.cores)
                waiting = [more] if more is not None else []

    def _try(self, setting: RankSetting, left: int) -> None:
        number = len(self.outcomes) + 1
        self.say(f"tune: trial {number} of {number + left}: {setting}: ")
        reason = self._why_not(setting)
        if reason is not None:
            outcome = Outcome(setting, "skipped", reason=reason)
        else:
            best = best_of(self.outcomes)
            rate = best.estimate.rate if best is not None and best.estimate is not None else None
            try:
                outcome = self.measure(setting, rate)
            except Stopped:
                self.outcomes.append(Outcome(setting, "interrupted", reason="interrupted"))
                self.say("interrupted\n")
                raise
        self.outcomes.append(outcome)
        self.say(f"{_describe(outcome)}\n")

    def _why_not(self, setting: RankSetting) -> str | None:
        if self.thorough:
            return None
        return why_not(setting, self._speeds(), self.cores, self.free_bytes())

    def _speeds(self) -> list[Speed]:
        return [
            Speed(o.setting, e.rate, max(0, (e.rank_bytes or 0) - e.shared_bytes), e.shared_bytes)
            for o in self.outcomes
            if (e := o.estimate) is not None
        ]

    def _is_hopeless(self) -> bool:
        """Whether the settings of the run are wrong, and so are for any number of ranks."""
        last = self.outcomes[-2:]
        return (
            len(last) == len(self.outcomes) == 2
            and all(outcome.code == _WRONG_SETTINGS for outcome in last)
            and last[0].errors == last[1].errors
        )


def best_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The fastest; among equals, the one with the fewest ranks and threads."""
    full = [
        (o.estimate.rate, o) for o in outcomes if o.status == "measured" and o.estimate is not None
    ]
    if not full:
        return None
    highest = max(rate for rate, _ in full)
    good = [outcome for rate, outcome in full if rate >= _AS_GOOD * highest]
    return min(good, key=lambda o: (o.setting.ranks * o.setting.threads, o.setting))


def free_memory() -> int | None:
    """Bytes available to new programs; None if unknown."""
    _, free = read_memory()
    known = [size for size in (free, read_memory_limit()) if size]
    return min(known, default=None)


def describe_load(load: float, cores: int) -> str | None:
    """A warning if others use the cores, too, which distorts the measurements.

    >>> describe_load(0.4, 2)
    >>> describe_load(5.2, 2)
    'tune: the machine is busy (load 5.2 on 2 cores): the figures may be distorted'
    """
    if load < max(1, cores / 2):
        return None
    busy = f"the machine is busy (load {load:.1f} on {cores} cores)"
    return f"tune: {busy}: the figures may be distorted"


def write_progress(text: str) -> None:
    """Write to stderr at once."""
    sys.stderr.write(text)
    sys.stderr.flush()


def _describe(outcome: Outcome) -> str:
    found = outcome.estimate
    if found is None:
        return f"{outcome.status}: {outcome.reason}"
    waiting = "" if found.waiting is None else f", waiting {100 * found.waiting:.0f} %"
    early = ", stopped early" if outcome.status == "early" else ""
    return f"{found.rate:,.4g} {found.unit}/s{waiting}{early}"
