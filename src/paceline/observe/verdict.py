"""The verdict of a run: who holds the others up, how often, by how much, and why.

Judged from a sample of every rank's steps. It abstains rather than guesses: differences that may be
by chance name nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Kind = Literal["unknown", "even", "rank", "node", "turns", "saving", "communication"]
Cause = Literal["compute", "data", "other load", "communication", "checkpoint", "uneven work"]

_COMPUTE, _WAIT, _COMMUNICATION, _DATA, _QUEUED = range(5)
_LEAST_STEPS, _LEAST_STEPS_ALONE = 20, 10
"""A rank that waits for nobody is judged by its own mean."""
_FIRST = 3
"""Steps that start-up makes slow."""
_WORTH_NAMING = 0.05
"""The share of time lost above which somebody is named."""
_WORTH_NAMING_TURNS = 0.1
"""The same of ranks that take turns: between steps that are all alike there is always some."""
_MUCH_COMMUNICATION = 0.4
_SURE = 4.0
"""Standard errors by which a rank must be slower: enough for the slowest of a thousand."""
_LONGEST = 5.0
"""Times the median that a step may count: one hiccup makes no verdict."""
_CROWDED = 0.25
"""The share of its compute that a rank has no core, above which that is the cause."""
_MOST = 0.6
"""The share of a rank's delay that a cause must explain."""


@dataclass(frozen=True)
class RankTimes:
    """What a rank knows of its own steps."""

    node: str
    rows: npt.NDArray[np.floating] | Sequence[Sequence[float]]
    """Of each sampled step the seconds of compute, wait, communication, data, and without a core.
    Ranks that exchange together sampled the same steps."""
    saved_s: float = 0.0
    seconds: float = 0.0
    """All its time."""


@dataclass(frozen=True)
class Verdict:
    """One sentence, and the figures in it."""

    kind: Kind
    """unknown: too little to tell; even: nobody stands out; turns: now one rank, now another."""
    sentence: str
    rank: int | None = None
    node: str | None = None
    cause: Cause | None = None
    last_in: float | None = None
    """The share of steps in which this rank arrived last."""
    lost: float = 0.0
    """The share of time that the others lost by it."""

    @property
    def names_something(self) -> bool:
        return self.kind not in ("unknown", "even")

    def summary(self) -> dict[str, str | float | int | None]:
        """For the summary of a run."""
        rounded = {"lost": round(self.lost, 4)}
        if self.last_in is not None:
            rounded["last_in"] = round(self.last_in, 4)
        return {**asdict(self), **rounded}


def judge(ranks: Mapping[int, RankTimes], asynchronous: bool = False) -> Verdict | None:
    """The verdict on these ranks; None for one rank, which holds nobody up.

    >>> steps = [[1.0, 0.4, 0.1, 0.0, 0.0]] * 30, [[1.4, 0.0, 0.1, 0.0, 0.0]] * 30
    >>> found = judge({0: RankTimes("a", steps[0]), 1: RankTimes("a", steps[1])})
    >>> found.rank, found.cause, found.last_in, round(found.lost, 2)
    (1, 'compute', 1.0, 0.27)
    """
    if len(ranks) < 2:
        return None
    saving = _judge_saving(ranks)
    if saving is not None:
        return saving
    taken = min(len(one.rows) for one in ranks.values())
    if taken < _FIRST + (_LEAST_STEPS_ALONE if asynchronous else _LEAST_STEPS):
        return Verdict("unknown", f"no verdict: {taken} steps are too few to tell")
    if asynchronous:
        return _judge_speeds(ranks)
    rows = [np.asarray(one.rows[_FIRST:taken], float) for one in ranks.values()]
    return _Steps(list(ranks), [one.node for one in ranks.values()], np.stack(rows)).judge()


def describe_verdict(summary: Mapping[str, Any]) -> str | None:
    """The line at the end of a run with this summary."""
    found = summary.get("verdict")
    return None if found is None else f"verdict: {found['sentence']}"


def _judge_saving(ranks: Mapping[int, RankTimes]) -> Verdict | None:
    shares = {r: one.saved_s / one.seconds for r, one in ranks.items() if one.seconds > 0}
    most = max(shares.values(), default=0.0)
    if most < _WORTH_NAMING:
        return None
    says = f"training stood still for {_percent(most)} of the time to save checkpoints"
    return Verdict("saving", says, cause="checkpoint", lost=most)


class _Steps:
    """The same steps of all ranks of a synchronous rule, side by side."""

    def __init__(self, names: Sequence[int], nodes: Sequence[str], rows: Array) -> None:
        """`rows` has a row for each rank and step."""
        self.names, self.nodes = names, nodes
        seconds = rows[..., :_QUEUED].sum(axis=2).mean(axis=0)
        longest = _LONGEST * float(np.median(seconds))
        rows = rows * np.minimum(1.0, longest / np.maximum(seconds, 1e-12))[:, None]
        self.rows, self.seconds = rows, rows[..., :_QUEUED].sum(axis=2).mean(axis=0)
        self.own = rows[..., _COMPUTE] + rows[..., _DATA]
        """What a rank does before the others can go on."""
        self.last = self.own.argmax(axis=0)
        others = len(names) - 1
        idle = rows[..., _WAIT] + rows[..., _COMMUNICATION]
        steps = np.arange(rows.shape[1])
        ahead = self.own.max(axis=0) - (self.own.sum(axis=0) - self.own.max(axis=0)) / others
        waited = (idle.sum(axis=0) - idle[self.last, steps]) / others
        self.lost = np.minimum(ahead, waited)

    def judge(self) -> Verdict:
        total = float(self.seconds.sum())
        lost = float(self.lost.sum()) / total if total > 0 else 0.0
        slow = int(self.own.mean(axis=1).argmax())
        ahead = _ahead(self.own, slow)
        by_it = min(float(ahead.mean() / self.seconds.mean()), lost) if total > 0 else 0.0
        if by_it >= max(_WORTH_NAMING, 0.4 * lost) and _is_sure(ahead):
            return self._name(slow, by_it)
        lost *= 1 - 1 / len(self.names)  # of all ranks: the last loses nothing
        if lost >= _WORTH_NAMING_TURNS:
            return self._name_turns(lost)
        share = float(self.rows[..., _COMMUNICATION].mean() / self.seconds.mean()) if total else 0.0
        if share >= _MUCH_COMMUNICATION:
            says = f"no rank stands out; all spend {_percent(share)} of the time communicating"
            return Verdict("communication", says, cause="communication", lost=share)
        return Verdict("even", "no rank stands out")

    def _name(self, slow: int, lost: float) -> Verdict:
        rank, mates = self.names[slow], self._slow_mates(slow)
        last_in = float(np.isin(self.last, mates).mean())
        cause, reason = self._explain(slow, mates)
        lose = f"the others lose {_percent(lost)} of their time waiting for it"
        when = "in every step" if last_in > 0.995 else f"in {_percent(last_in)} of the steps"
        if len(mates) > 1:
            node = self.nodes[slow]
            says = f"node {node} arrives last {when}, and {lose}: {reason}"
            return Verdict("node", says, None, node, cause, last_in, lost)
        where = f" ({self.nodes[slow]})" if len(set(self.nodes)) > 1 else ""
        says = f"rank {rank}{where} arrives last {when}, and {lose}: {reason}"
        return Verdict("rank", says, rank, self.nodes[slow], cause, last_in, lost)

    def _name_turns(self, lost: float) -> Verdict:
        steps = np.arange(self.rows.shape[1])
        late = self.rows[self.last, steps]
        others = (self.rows.sum(axis=0) - late) / (len(self.names) - 1)
        cause = _find_cause(late.mean(axis=0), others.mean(axis=0))
        reasons: dict[Cause | None, str] = {
            "data": "now one rank waits for its data, now another",
            "other load": "something else takes the cores, now of one rank, now of another",
            None: "sometimes by computing, sometimes by waiting for data",
        }
        says = "the samples differ in cost, or the cores in speed"
        says = reasons.get(cause, f"one computes longer, then another; {says}")
        cause = "uneven work" if cause == "compute" else cause
        sentence = f"ranks take turns at arriving last, and lose {_percent(lost)} of the time: "
        return Verdict("turns", sentence + says, cause=cause, lost=lost)

    def _slow_mates(self, slow: int) -> list[int]:
        """All ranks of its node if they are slow, too, and others are not; else it alone."""
        mates = [at for at, node in enumerate(self.nodes) if node == self.nodes[slow]]
        if len(mates) < 2 or len(mates) == len(self.nodes):
            return [slow]
        rest = [at for at in range(len(self.nodes)) if at not in mates]
        means = self.own.mean(axis=1)
        base = float(means[rest].mean())
        is_node = bool((means[mates] - base >= 0.5 * (means[slow] - base)).all())
        return mates if is_node and means[rest].max() < means[mates].min() else [slow]

    def _explain(self, slow: int, mates: Sequence[int]) -> tuple[Cause | None, str]:
        rest = [at for at in range(len(self.names)) if at not in mates]
        means = self.rows.mean(axis=1)
        own, others = means[list(mates)].mean(axis=0), means[rest].mean(axis=0)
        cause = _find_cause(own, others)
        return cause, _describe(cause, own, others, whole_node=len(mates) > 1)


def _judge_speeds(ranks: Mapping[int, RankTimes]) -> Verdict:
    """Workers of an asynchronous rule do not wait: a slow one does fewer steps."""
    names = list(ranks)
    rows = {rank: np.asarray(one.rows[_FIRST:], float) for rank, one in ranks.items()}
    steps = {
        rank: own[:, (_COMPUTE, _COMMUNICATION, _DATA)].sum(axis=1) for rank, own in rows.items()
    }
    steps = {rank: np.minimum(own, _LONGEST * np.median(own)) for rank, own in steps.items()}
    means = {rank: float(own.mean()) for rank, own in steps.items()}
    slow = max(names, key=lambda rank: means[rank])
    others = [rank for rank in names if rank != slow]
    usual = float(np.median([means[rank] for rank in others]))
    spread = _error(steps[slow]) ** 2 + float(np.mean([_error(steps[r]) ** 2 for r in others]))
    lost = (1 / usual - 1 / means[slow]) / (len(names) / usual) if usual > 0 else 0.0
    sure = means[slow] - usual > _SURE * spread**0.5
    if lost * len(names) < 2 * _WORTH_NAMING or not sure:
        return Verdict("even", "no rank stands out: all are about equally fast")
    own, rest = rows[slow].mean(axis=0), np.mean([rows[r].mean(axis=0) for r in others], axis=0)
    cause = _find_cause(own, rest, communicates=True)
    times = means[slow] / usual
    says = (
        f"rank {slow} takes {times:.1f}x as long per step as the others, and does fewer steps; all "
        f"ranks together are {_percent(lost)} slower by it: {_describe(cause, own, rest)}"
    )
    return Verdict("rank", says, slow, ranks[slow].node, cause, None, lost)


def _find_cause(own: Array, others: Array, communicates: bool = False) -> Cause | None:
    """What takes the late longer than others, if it is clear: seconds of each part."""
    more = own - others
    parts: dict[Cause, float] = {"compute": float(more[_COMPUTE]), "data": float(more[_DATA])}
    if communicates:
        parts["communication"] = float(more[_COMMUNICATION])
    whole = sum(max(0.0, part) for part in parts.values())
    cause = max(parts, key=lambda name: parts[name])
    if whole <= 0 or parts[cause] < _MOST * whole:
        return None
    if cause != "compute":
        return cause
    # On a machine that is that busy, how long computing takes says nothing of the processor.
    is_crowded = own[_QUEUED] >= _CROWDED * own[_COMPUTE]
    if is_crowded or more[_QUEUED] >= 0.5 * parts["compute"]:
        return "other load"
    return cause


def _describe(cause: Cause | None, own: Array, others: Array, whole_node: bool = False) -> str:
    """Why a rank, or those of a node, are late."""
    it, has = ("its ranks", "have") if whole_node else ("it", "has")
    if cause == "data":
        waits = "wait" if whole_node else "waits"
        return f"{it} {waits} {_milliseconds(own[_DATA])} per step for data, the others " + (
            _milliseconds(others[_DATA])
        )
    if cause == "other load":
        share = own[_QUEUED] / own[_COMPUTE]
        return f"something else takes its cores ({it} {has} none {_percent(share)} of the time)"
    if cause == "compute":
        computes = "compute" if whole_node else "computes"
        times = own[_COMPUTE] / others[_COMPUTE] if others[_COMPUTE] > 0 else 0.0
        return f"{it} {computes} {f'{times:.1f}x as long' if times < 100 else 'longer'}"
    if cause == "communication":
        return f"it communicates {_milliseconds(own[_COMMUNICATION])} per step, the others " + (
            _milliseconds(others[_COMMUNICATION])
        )
    return "partly by computing, partly by waiting for data"


def _ahead(own: Array, slow: int) -> Array:
    """By how much a rank takes longer than the mean of the others, in each step."""
    mean: Array = own[slow] - np.delete(own, slow, axis=0).mean(axis=0)
    return mean


def _is_sure(differences: Array) -> bool:
    return bool(differences.mean() > _SURE * _error(differences))


def _error(values: Array) -> float:
    return float(values.std() / max(1, values.size) ** 0.5)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
