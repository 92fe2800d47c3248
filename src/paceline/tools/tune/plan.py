"""Which ranks x threads are worth a trial, in which order, and which cannot win."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

_MOST_CROWDED = 8
"""The most ranks per core to try unless you ask for more."""
_FALLS = 2
"""Settings in a row, each slower than the one before, that make a trend."""


@dataclass(frozen=True, order=True)
class RankSetting:
    """Ranks, and threads of each."""

    ranks: int
    threads: int = 1

    def __str__(self) -> str:
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        return f"{ranks} x {self.threads} thread{'s' * (self.threads > 1)}"


@dataclass(frozen=True)
class Speed:
    """The speed of a setting; `rank_bytes` is what a rank does not share."""

    setting: RankSetting
    rate: float
    rank_bytes: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True)
class Capacity:
    """The cores that ranks share, those of the smallest node, and the limit of ranks."""

    cores: int
    node_cores: int
    most_ranks: int | None = None


def plan(
    capacity: Capacity, ranks: Sequence[int] | None = None, threads: Sequence[int] | None = None
) -> list[RankSetting]:
    """The settings to try, the likely best first.

    First a rank for each core; then more and more ranks, which fill the gaps that uneven examples
    leave; then fewer and fewer ranks with more threads. Without `threads` the ranks share the
    cores.

    >>> [(s.ranks, s.threads) for s in plan(Capacity(4, 4))]
    [(4, 1), (6, 1), (8, 1), (2, 2), (2, 1), (1, 4)]
    """
    cores = capacity.cores
    counts = ranks or [r for r in _usual_ranks(cores) if r <= (capacity.most_ranks or r)]
    if threads:
        found = [RankSetting(r, t) for r in counts for t in threads]
        if not ranks:
            most = max(2 * cores, min(counts) * min(threads))
            found = [s for s in found if s.ranks * s.threads <= most]
    else:
        found = [RankSetting(r, max(1, min(cores // r, capacity.node_cores))) for r in counts]
        if not ranks and cores > 1:
            found.append(RankSetting(cores // 2, 1))
    return sorted(set(found), key=lambda setting: _order(setting, cores))


def beyond(speeds: Iterable[Speed], cores: int) -> RankSetting | None:
    """What to try after the plan: even more ranks, if the most ranks were fastest."""
    tried = list(speeds)
    if not tried:
        return None
    best = max(tried, key=lambda speed: speed.rate).setting
    more = best.ranks + (best.ranks + 1) // 2
    grown = best.ranks > cores and best.ranks == max(speed.setting.ranks for speed in tried)
    return RankSetting(more, best.threads) if grown and more <= _MOST_CROWDED * cores else None


def why_not(
    setting: RankSetting, speeds: Sequence[Speed], cores: int, free_bytes: int | None
) -> str | None:
    """Why a setting cannot win, given those that were measured; None if it might."""
    return _lacks_memory(setting, speeds, free_bytes) or _is_past_the_top(setting, speeds, cores)


def _usual_ranks(cores: int) -> list[int]:
    powers = [2**n for n in range(cores.bit_length()) if 2**n < cores]
    return sorted({*powers, cores, cores + cores // 2, 2 * cores})


def _order(setting: RankSetting, cores: int) -> tuple[int, int, int]:
    ranks = setting.ranks
    if ranks >= cores:
        return 0, ranks, setting.threads
    return 1, -ranks, -setting.threads


def _lacks_memory(
    setting: RankSetting, speeds: Sequence[Speed], free_bytes: int | None
) -> str | None:
    if free_bytes is None or not speeds:
        return None
    like = max(speeds, key=lambda speed: speed.rank_bytes)
    need = setting.ranks * like.rank_bytes + like.shared_bytes
    if need <= free_bytes:
        return None
    return f"would take {need / 1e9:.1f} GB, {free_bytes / 1e9:.1f} GB are free"


def _is_past_the_top(setting: RankSetting, speeds: Sequence[Speed], cores: int) -> str | None:
    if setting.ranks > cores:
        way = [s for s in speeds if s.setting.threads == setting.threads]
        way = sorted(
            (s for s in way if cores <= s.setting.ranks < setting.ranks), key=lambda s: s.setting
        )
        why = "more ranks were slower already"
    else:
        filled = max(1, cores // setting.ranks) == setting.threads
        way = [s for s in speeds if max(1, cores // s.setting.ranks) == s.setting.threads]
        way = sorted(
            (s for s in way if filled and setting.ranks < s.setting.ranks <= cores),
            key=lambda s: s.setting,
            reverse=True,
        )
        why = "fewer ranks were slower already"
    falls = [later.rate < earlier.rate for earlier, later in pairwise(way)]
    return why if len(falls) >= _FALLS and all(falls[-_FALLS:]) else None
