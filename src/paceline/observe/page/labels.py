"""Short names of runs, for the ends of curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_MOST = 19
"""Characters that have room beside a plot."""


def label_runs(names: Sequence[str]) -> list[str]:
    """What tells the names apart: without the words that all begin or end with; each only once.

    >>> label_runs(["20260131-1545-mnist-bsp", "20260131-1602-mnist-bsp", "20260131-1611-lstm-bsp"])
    ['1545-mnist', '1602-mnist', '1611-lstm']
    >>> label_runs(["a", "a"])
    ['a', 'a (2)']
    """
    words = [name.split("-") for name in names]
    if len(set(names)) > 1:
        words = _without_common_start(words)
        words = [one[::-1] for one in _without_common_start([one[::-1] for one in words])]
    short = ["-".join(one) for one in words]
    short = [one if len(one) <= _MOST else f"{one[: _MOST - 1]}…" for one in short]
    seen: Counter[str] = Counter()
    labels = []
    for one in short:
        seen[one] += 1
        labels.append(one if seen[one] == 1 else f"{one[: _MOST - 4]} ({seen[one]})")
    return labels


def _without_common_start(words: list[list[str]]) -> list[list[str]]:
    """At least a word of each is left."""
    while min(map(len, words)) > 1 and len({one[0] for one in words}) == 1:
        words = [one[1:] for one in words]
    return words
