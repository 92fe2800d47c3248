"""What `bench uneven` makes of its measurements: shares of the ideal, spreads, rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NotRequired, TypedDict

from paceline.tools.bench.rows import Row

OURS = ("planned", "learned", "speeds", "dynamic", "longest")


class Facts(TypedDict):
    """What a contestant reached in its best round."""

    seconds: float
    examples: int
    steps: int
    loss: NotRequired[float]
    """After both epochs, over all sentences."""
    of_ideal: NotRequired[float]
    """What ranks compute on average, the optimizer's step included, over the time it took; where
    they outnumber the cores, forward and backward alone."""
    working: NotRequired[float]
    """The share of its time that a rank spends in forward and backward, on average."""
    waiting: NotRequired[float]
    """The share of its time that a rank waits for others, on average."""
    spread: NotRequired[float]
    """How much more tokens the rank with most has in a step than ranks have on average."""
    padding: NotRequired[float]


def ideal_seconds(busy: Sequence[float], slowdown: Sequence[int], cores: int | None) -> float:
    """What ranks would need for the work in which they spent these seconds, if none ever waited.

    A rank with slowdown 2 does half as much in a second. With fewer cores than ranks no more can
    be busy at once; None: there are enough.

    >>> ideal_seconds([4.0, 2.0], (), None), ideal_seconds([4.0, 4.0], (1, 2), None)
    (3.0, 4.0)
    >>> ideal_seconds([1.0, 2.0, 3.0, 2.0], (), 2)
    4.0
    """
    slowdown = slowdown or [1] * len(busy)
    work = sum(own / slow for own, slow in zip(busy, slowdown, strict=True))
    at_once = min(len(busy), cores or len(busy))
    return work / sum(1 / slow for slow in slowdown) * len(busy) / at_once


def mean_spread(costs: Sequence[Sequence[float]]) -> float:
    """How far the rank with the most is above the mean, for costs of [rank][step], on average.

    >>> mean_spread([[3, 1], [1, 1]])
    0.25
    """
    above = []
    for step in zip(*costs, strict=True):
        mean = sum(step) / len(step)
        above.append(max(step) / mean - 1 if mean else 0.0)
    return sum(above) / len(above)


def make_rows(case: str, found: Mapping[str, Facts]) -> Iterator[Row]:
    """A row for each way of ours, beside equal counts and the peers.

    >>> planned = {"seconds": 1.0, "examples": 30, "steps": 1, "loss": 0.7, "of_ideal": 0.9}
    >>> counts = {"seconds": 2.0, "examples": 30, "steps": 1, "loss": 0.8, "of_ideal": 0.6}
    >>> next(make_rows("tree", {"planned": planned, "counts": counts}))
    Row(bench='uneven', case='tree, planned', unit='examples/s', ours=30.0, \
peers={'counts': 15.0}, notes={'of ideal': 0.9, 'loss': 0.7, "peers' of ideal": '0.60', \
"peers' loss": '0.800'})
    """
    peers = {name: facts for name, facts in found.items() if name not in OURS}
    beside = {
        "peers' of ideal": _list(peers, "of_ideal", 2),
        "peers' loss": _list(peers, "loss", 3),
    }
    rates = {name: facts["examples"] / facts["seconds"] for name, facts in found.items()}
    for name in OURS:
        if name in found:
            notes = _note(found[name]) | {key: text for key, text in beside.items() if text}
            others = {peer: rates[peer] for peer in peers}
            yield Row("uneven", f"{case}, {name}", "examples/s", rates[name], others, notes)


def _note(facts: Facts) -> dict[str, object]:
    notes = {
        "of ideal": facts.get("of_ideal"),
        "working": facts.get("working"),
        "waiting": facts.get("waiting"),
        "spread": facts.get("spread"),
        "padding": facts.get("padding"),
        "loss": facts.get("loss"),
    }
    return {name: value for name, value in notes.items() if value is not None}


def _list(found: Mapping[str, Facts], key: str, digits: int) -> str:
    """The figures of all that have one, in their order."""
    values = (facts.get(key) for facts in found.values())
    return " ".join(f"{value:.{digits}f}" for value in values if isinstance(value, float))


def make_overhead_row(case: str, found: Mapping[str, Facts]) -> Row:
    """
    >>> dealt = {"seconds": 2.02, "examples": 80, "steps": 10}
    >>> counts = {"seconds": 2.0, "examples": 80, "steps": 10}
    >>> make_overhead_row("equal", {"dynamic": dealt, "counts": counts}).notes
    {'overhead %': 1.0}
    """
    per_s = {name: facts["steps"] / facts["seconds"] for name, facts in found.items()}
    overhead = 100 * (per_s["counts"] / per_s["dynamic"] - 1)
    return Row(
        "uneven",
        f"{case}, dynamic",
        "steps/s",
        per_s["dynamic"],
        {"counts": per_s["counts"]},
        {"overhead %": round(overhead, 2)},
    )
