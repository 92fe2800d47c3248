"""How much ranks waited for each other, why, and what would win it back.

A rank that is slower than the others all the time never waits itself. Where now one rank takes
longer, now another, every rank waits now and then, even the one that waits least. So what all ranks
have waited is due to uneven work, and what the others have waited beyond that is due to a slow
rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from paceline.observe.history import TimeSplit

WORTH_SAYING = 0.05
"""The share of time spent waiting above which there is advice."""
_WORTH_NAMING = 0.02
"""The share above which a reason is named."""
_ENOUGH_S, _ENOUGH_STEPS = 3.0, 20
_BY_CHANCE = 4.0
"""In so many steps some rank waits less than the others by chance: by the uneven part times this,
divided by the square root of the steps (two standard deviations, for log-normal work)."""


@dataclass(frozen=True)
class Waiting:
    """The waiting of a synchronous run, as shares of its time."""

    ranks: int
    steps: int
    seconds: float
    """How long it was measured."""
    uneven: float
    """Waited now for one rank, now for another."""
    slow: float
    """Waited for the slowest rank."""
    slowest_rank: int | None = None
    """The one that waits least, unless that may be by chance."""
    slowness: float = 1.0
    """How many times as long as the others the rank that waits least takes for its work."""

    @property
    def share(self) -> float:
        """All of it."""
        return self.uneven + self.slow

    def summary(self) -> dict[str, float | int | None]:
        """For the summary of a run."""
        return {
            "uneven": round(self.uneven, 4),
            "slow": round(self.slow, 4),
            "slowest_rank": self.slowest_rank,
        }


def split_waiting(times: Mapping[int, TimeSplit], steps: int) -> Waiting | None:
    """Split what these ranks have waited; None if no time was measured.

    >>> found = split_waiting({0: TimeSplit(5.0, wait=3.0), 1: TimeSplit(7.0, wait=1.0)}, steps=900)
    >>> found.uneven, found.slow, found.slowest_rank, found.slowness
    (0.125, 0.125, 1, 1.4)
    """
    seconds = fmean(split.total for split in times.values()) if times else 0.0
    if not 0.0 < seconds < float("inf"):
        return None
    if len(times) == 1:
        return Waiting(1, steps, seconds, 0.0, 0.0)
    least = min(times, key=lambda rank: times[rank].wait)
    uneven = times[least].wait / seconds
    slow = fmean(split.wait for split in times.values()) / seconds - uneven
    by_chance = uneven * _BY_CHANCE / max(1, steps) ** 0.5
    notable = slow >= _WORTH_NAMING and slow > by_chance
    others = fmean(_work(split) for rank, split in times.items() if rank != least)
    return Waiting(
        len(times),
        steps,
        seconds,
        uneven,
        slow,
        least if notable else None,
        _work(times[least]) / others if others else 1.0,
    )


def _work(split: TimeSplit) -> float:
    return split.compute + split.data


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What advice depends on: what a run is, and what it could use and does not."""

    asynchronous: bool = False
    """Its ranks do not wait for each other."""
    own_loop: bool = False
    """Samples come from functions that the user calls, and not from settings."""
    crowded: bool = False
    """There are more ranks than cores."""
    busy: bool = False
    """Other programs use the cores, too."""
    same_shape: bool = False
    """All samples have the same shape, and need not differ in cost."""
    can_cost: bool = True
    """Costs could say which rank gets which samples."""
    can_deal: bool = True
    """Ranks could take the next samples when they are ready."""
    can_measure_speeds: bool = True
    """Slow ranks could be given less."""


def advise(
    waiting: Waiting | None, facts: RunFacts, *, tuned: bool = False, described: bool = False
) -> str | None:
    """What to do about the waiting, in a few sentences; None if it is not worth it.

    `tuned`: other numbers of ranks have been tried. `described`: a verdict says who waits for whom.
    """
    if waiting is None or waiting.ranks < 2 or facts.asynchronous:
        return None
    if waiting.seconds < _ENOUGH_S or waiting.steps < _ENOUGH_STEPS:
        return None
    if waiting.share < WORTH_SAYING:
        return None
    found = _Reasons.of(waiting)
    busy = (
        "Other programs use these cores, too, and may be the reason"
        if facts.busy and not facts.same_shape
        else None
    )
    reasons = None if described else found.describe(facts)
    sentences = (reasons, _remedy(found, facts, tuned), busy)
    return " ".join(f"{sentence}." for sentence in sentences if sentence) or None


@dataclass(frozen=True)
class _Reasons:
    """What is named: a reason that is not has the share 0."""

    uneven: float
    slow: float
    rank: int | None
    slowness: float

    @classmethod
    def of(cls, waiting: Waiting) -> _Reasons:
        uneven, slow, rank = waiting.uneven, waiting.slow, waiting.slowest_rank
        if rank is None:  # some rank waits least
            uneven, slow = uneven + slow, 0.0
        elif uneven < _WORTH_NAMING:
            uneven = 0.0
        return cls(uneven, slow, rank, waiting.slowness)

    def describe(self, facts: RunFacts) -> str:
        uneven, slow = round(100 * self.uneven), round(100 * self.slow)
        turns = "now for one of them, now for another"
        if not facts.same_shape:
            turns += " (uneven work)"
        times = f"about {self.slowness:.1f}x slower than the others"
        slower = f"for rank {self.rank}, which is {times if self.slowness >= 1.05 else 'slower'}"
        begin = f"ranks waited {uneven + slow} % of the time"
        if not self.slow:
            return f"{begin}, {turns}"
        if not self.uneven:
            return f"{begin} {slower}"
        return f"{begin}: {uneven} % {turns}, {slow} % {slower}"


@dataclass(frozen=True)
class _Names:
    cost: str
    deal: str
    speeds: str


_SETTINGS = _Names("data.cost", "data.deal=dynamic", "data.speeds=measured")
_FUNCTIONS = _Names(
    "paceline.shard(..., cost=...)",
    "paceline.deal(...)",
    'paceline.shard(..., speeds="measured")',
)


def _remedy(found: _Reasons, facts: RunFacts, tuned: bool) -> str | None:
    names = _FUNCTIONS if facts.own_loop else _SETTINGS
    if facts.crowded:
        return _remedy_of_crowd(found, facts, names)
    everything = _faster(found.uneven + found.slow)
    by_cost = bool(found.uneven) and facts.can_cost
    by_speeds = bool(found.slow) and facts.can_measure_speeds
    less = f"less work for rank {found.rank} ({names.speeds})"
    dealing = f"as ranks get ready ({names.deal})"
    if found.uneven and facts.same_shape:
        unless = f" unless some take longer all the same ({names.cost})," if by_cost else ""
        others = "it is the other programs" if facts.busy else "look for other programs"
        text = f"All samples have the same shape:{unless} {others} on these cores"
        gives = f"; {less} would make the run up to {_faster(found.slow)} faster"
        return text + gives if by_speeds else text
    if by_cost:
        text = f"If samples differ in cost, equal cost per step ({names.cost}) would make the run "
        text += f"up to {_faster(found.uneven)} faster"
        text += f", with {less} {everything}" if by_speeds else ""
        does = "both" if by_speeds else "the same"
        deals = f"; dealing them {dealing} does {does} without known costs"
        return text + deals if facts.can_deal else text
    if facts.can_deal and (found.uneven or not by_speeds):
        return f"Dealing samples {dealing} would make the run up to {everything} faster"
    if by_speeds:
        return f"{less.capitalize()} would make the run up to {_faster(found.slow)} faster"
    if found.uneven and not tuned:
        return "More ranks than cores fill the waiting: paceline tune finds how many"
    return None


def _remedy_of_crowd(found: _Reasons, facts: RunFacts, names: _Names) -> str | None:
    """No figures: what a rank waits is not lost where another has its core meanwhile."""
    begin = "There are more ranks than cores, so others compute meanwhile"
    if found.uneven and not facts.same_shape:
        if facts.can_cost:
            return f"{begin}; with equal cost per step ({names.cost}) fewer may be as fast"
        if facts.can_deal:
            return f"{begin}; dealt as ranks get ready ({names.deal}), fewer may be as fast"
    return begin


def _faster(share: float) -> str:
    """How much faster a run is without this share of its time."""
    return f"{1 / (1 - min(share, 0.99)):.2f}x"
