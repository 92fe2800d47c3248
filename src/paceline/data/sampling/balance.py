"""Equal cost instead of equal counts: which samples make a step, and which rank takes which.

All of it is arithmetic on the samples' costs and a common seed, so every rank plans the same epoch
without communicating. Samples of similar cost are put into the same step as far as `bucketing`
says; then each step is split longest first: the next sample goes to the rank with the least so
far, for its speed. Every rank gets a sample, and two where there are enough for all: batch
normalisation fails on one.

Where batches are padded, each sample costs as much as the longest of its batch: then ranks get
samples of similar length, one few long ones and another many short ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heapreplace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from paceline.core.vectors import Vector
from paceline.data.sampling.shards import StepPlan, smallest_step

Places = npt.NDArray[np.int64]
"""Positions in the order of an epoch."""

BUCKETINGS = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98, 1.0)
"""What is tried, the most random first, if nothing is said."""
GOOD_BALANCE = 0.99
"""The mean cost of a rank in a step, divided by the largest: enough to stop trying."""
NEGLIGIBLE = 0.005
WORTH_RANDOMNESS = 0.03
"""How much padding may cost so that steps stay random."""
FEWEST_TRIED, STEPS_TRIED, SAMPLES_TRIED = 12, 48, 1 << 16
"""Steps that are split to see how well a bucketing balances; fewer of large ones."""
WINDOW = 1 << 16
"""Samples of the steps that are split at a time."""
FINE_SPREAD = 0.005
"""The largest load of a rank above the mean that is not worth an exchange of samples."""
SWAPS_PER_STEP = 200
LIMITS_TRIED = 24


class BalancedEpoch:
    """The steps of an epoch whose ranks have equal costs: which places of its order each takes."""

    def __init__(
        self,
        costs: Vector,
        places: Places,
        edges: Places,
        ranks_with_samples: int,
        padded: bool = False,
    ) -> None:
        """`costs` are of the samples in the epoch's order. Step s consists of
        `places[edges[s] : edges[s + 1]]`, and is split among the first ranks."""
        self._costs, self._places, self._edges = costs, places, edges
        self._split_step = split_padded if padded else split_step
        self.ranks_with_samples = ranks_with_samples
        """How many ranks get samples; the others have none in any step."""
        longest = int(np.diff(edges).max()) if len(self) else 1
        self._steps_at_once = max(1, WINDOW // longest)
        self._window: tuple[int, list[list[Places]]] | None = None

    def __len__(self) -> int:
        return len(self._edges) - 1

    def share(self, step: int, rank: int, speeds: Vector | None = None) -> Places:
        """The places that the rank takes in this step; its cost is in proportion to its speed."""
        if speeds is not None:
            return self.split(step, speeds)[rank]
        number, row = divmod(step, self._steps_at_once)
        window = self._window
        if window is None or window[0] != number:
            self._window = window = number, list(self._split_window(number))
        return window[1][row][rank]

    def step(self, step: int) -> Places:
        """The places of all ranks."""
        return self._places[self._edges[step] : self._edges[step + 1]]

    def _split_window(self, number: int) -> Iterable[list[Places]]:
        first = number * self._steps_at_once
        for step in range(first, min(first + self._steps_at_once, len(self))):
            yield self.split(step)

    def split(self, step: int, speeds: Vector | None = None) -> list[Places]:
        places, size = self.step(step), self.ranks_with_samples
        own = None if speeds is None else speeds[:size]
        ranks = self._split_step(self._costs[places], size, own)
        return _by_rank(places, ranks, size)


def plan_balanced(
    costs: Vector,
    plan: StepPlan,
    *,
    bucketing: float,
    draw: np.random.Generator | None,
    budget: float | None = None,
    padded: bool = False,
    weights: Vector | None = None,
) -> BalancedEpoch:
    """Balance an epoch (or what is left of one) in steps of as many samples as `plan` says, or with
    a `budget` of about so much cost per rank. `padded`: a batch costs its count times its largest.

    With `weights` steps of similar samples have equal weight, not equal counts: else a token of a
    short sentence would count more than one of a long sentence, which shares its step with more.

    `costs` are of its samples, in their order. Steps come in random order by `draw`, or without it
    in the order of their costs.
    """
    places = _sort(costs, bucketing if len(plan) > 1 else 0.0)
    if budget is not None or (weights is not None and bucketing):
        least = smallest_step(plan.size, plan.batch_size)
        if budget is None:
            assert weights is not None
            sizes = _fill(weights[places], float(weights.mean()) * plan.world_batch, least)
        elif padded:
            sizes = _fill_padded(costs[places], budget, plan.size, least)
        else:
            sizes = _fill(costs[places], budget * plan.size, least)
        turns = np.arange(len(sizes)) if draw is None else draw.permutation(len(sizes))
        places, sizes = _in_turns(places, sizes, turns), sizes[turns]
    else:
        sizes = _lengths(plan)
        if bucketing and draw is not None and len(plan) > 1:
            # The last step may have another size. It must not always have the longest samples.
            odd = int(draw.integers(len(sizes)))
            lengths = np.full(len(sizes), sizes[0])
            lengths[odd] = sizes[-1]
            turns = draw.permutation(len(sizes))
            places = _in_turns(places, lengths, np.append(turns[turns != odd], odd))
    edges = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return BalancedEpoch(costs, places, edges, plan.ranks_with_samples, padded)


def _lengths(plan: StepPlan) -> Places:
    """The samples of each step."""
    spans = map(plan.span, range(len(plan)))
    return np.array([last - first for first, last in spans], np.int64)


def _fill(costs: Vector, budget: float, least: int) -> Places:
    """How many samples, one after the other, make each step: as many as fit into the budget, and no
    fewer than `least`; what is left at the end joins the last step if it is less than that.

    >>> _fill(np.array([1.0, 2.0, 3.0, 4.0, 1.0]), budget=4.0, least=1).tolist()
    [2, 1, 1, 1]
    """
    ends = np.cumsum(costs)
    sizes: list[int] = []
    first = 0
    while first < len(costs):
        before = ends[first - 1] if first else 0.0
        fitting = int(np.searchsorted(ends, before + budget * (1 + 1e-9), side="right"))
        last = min(len(costs), max(fitting, first + least))
        sizes.append(last - first)
        first = last
    return _join_last(sizes, least)


def _fill_padded(costs: Vector, budget: float, ranks: int, least: int) -> Places:
    """The same where each rank's batch is padded to its largest.

    >>> _fill_padded(np.array([1.0, 2.0, 3.0, 4.0, 1.0]), budget=4.0, ranks=1, least=1).tolist()
    [2, 1, 1, 1]
    """
    sizes: list[int] = []
    step = batches = count = 0
    largest = 0.0
    for cost in costs.tolist():
        if count and (count + 1) * max(largest, cost) > budget:
            batches, count, largest = batches + 1, 0, 0.0
        if batches >= ranks and step >= least:
            sizes.append(step)
            step = batches = count = 0
            largest = 0.0
        step, count, largest = step + 1, count + 1, max(largest, cost)
    return _join_last([*sizes, step] if step else sizes, least)


def _join_last(sizes: list[int], least: int) -> Places:
    if len(sizes) > 1 and sizes[-1] < least:
        sizes[-2:] = [sizes[-2] + sizes[-1]]
    return np.array(sizes, np.int64)


def _sort(costs: Vector, bucketing: float) -> Places:
    """With `bucketing` 0 the order is kept, and with 1 samples are sorted by cost.

    >>> _sort(np.array([3.0, 1.0, 4.0, 1.0]), 1.0).tolist()
    [1, 3, 0, 2]
    """
    if not bucketing:
        return np.arange(len(costs))
    quantiles = np.empty(len(costs))
    quantiles[np.argsort(costs, kind="stable")] = np.arange(len(costs))
    keys = bucketing * quantiles + (1 - bucketing) * np.arange(len(costs))
    return np.argsort(keys, kind="stable")


def _in_turns(places: Places, lengths: Places, turns: Places) -> Places:
    """Pieces of these lengths, in another order."""
    firsts = (np.cumsum(lengths) - lengths)[turns]
    lengths = lengths[turns]
    begun = np.cumsum(lengths) - lengths
    result: Places = places[np.repeat(firsts - begun, lengths) + np.arange(len(places))]
    return result


def choose_bucketing(costs: Vector, plan: StepPlan, padded: bool = False) -> float:
    """The least bucketing that balances well, or about as well as the largest does."""
    if (plan.size == 1 and not padded) or not costs.any():
        return 0.0
    if balance_of(costs, plan, 0.0, padded) >= GOOD_BALANCE:
        return 0.0
    best = balance_of(costs, plan, BUCKETINGS[-1], padded)
    wanted = min(GOOD_BALANCE, best - (WORTH_RANDOMNESS if padded else NEGLIGIBLE))
    low, high = 0, len(BUCKETINGS) - 1
    while high - low > 1:
        middle = (low + high) // 2
        enough = balance_of(costs, plan, BUCKETINGS[middle], padded) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return BUCKETINGS[high]


def balance_of(costs: Vector, plan: StepPlan, bucketing: float, padded: bool = False) -> float:
    """The mean cost of a rank in a step over the largest, padding included: 1 means that nobody
    waits, and nothing is padded.

    It is estimated from some of the steps.
    """
    draw = np.random.default_rng(0)
    epoch = plan_balanced(costs, plan, bucketing=bucketing, draw=draw, padded=padded)
    steps = max(FEWEST_TRIED, min(STEPS_TRIED, SAMPLES_TRIED // plan.world_batch))
    tried = np.unique(np.linspace(0, len(epoch) - 1, steps).astype(int))
    mean = largest = 0.0
    for step in tried.tolist():
        shares = [costs[share] for share in epoch.split(step)]
        mean += sum(float(share.sum()) for share in shares) / plan.size
        if padded:
            largest += max(len(share) * float(share.max(initial=0.0)) for share in shares)
        else:
            largest += max(float(share.sum()) for share in shares)
    return mean / largest if largest else 1.0


def split_step(costs: Vector, size: int, speeds: Vector | None = None) -> Places:
    """Which of `size` ranks takes which sample of a step, so that all need about the same time.

    `speeds` are costs per second; without them all ranks are equally fast.

    >>> split_step(np.array([6.0, 1.0, 2.0, 3.0]), 2).tolist()
    [0, 0, 1, 1]
    """
    order = np.argsort(-costs, kind="stable")
    ranks = np.empty(len(costs), np.int64)
    slowness = np.ones(size) if speeds is None else float(speeds.mean()) / speeds
    by_speed = np.argsort(slowness, kind="stable")
    found = np.array(_longest_first(costs[order].tolist(), slowness[by_speed].tolist()), np.int64)
    ranks[order] = by_speed[found]
    if len(costs) > size:
        _swap(costs, slowness, ranks)
    return ranks


def _longest_first(costs: list[float], slowness: list[float]) -> list[int]:
    """For descending costs and ranks from the fastest on: first one sample for each rank, and a
    second, the shortest, if there are enough; then always for the rank that is done first."""
    size = len(slowness)
    ranks = list(range(min(size, len(costs))))
    loads = [(cost * slowness[rank], 1, rank) for cost, rank in zip(costs, ranks, strict=False)]
    last: list[int] = []
    if len(costs) >= 2 * size:
        last = ranks[::-1]  # the shortest for the rank with the most
        shortest = costs[::-1][:size]
        loads = [
            (load + cost * slowness[rank], 2, rank)
            for (load, _, rank), cost in zip(loads, shortest, strict=True)
        ]
    heapify(loads)
    for cost in costs[size : len(costs) - len(last)]:
        load, count, rank = loads[0]
        heapreplace(loads, (load + cost * slowness[rank], count + 1, rank))
        ranks.append(rank)
    return ranks + last


def _swap(costs: Vector, slowness: Vector, ranks: Places) -> None:
    """Let the rank that takes longest exchange a sample with the one that is done first, while it
    helps."""
    size = len(slowness)
    loads = np.bincount(ranks, costs, size) * slowness
    limit = (1 + FINE_SPREAD) * float(costs.sum() / (1 / slowness).sum())
    for _ in range(min(SWAPS_PER_STEP, 4 * size)):
        most, least = int(loads.argmax()), int(loads.argmin())
        if loads[most] <= limit:
            return
        ours, theirs = np.flatnonzero(ranks == most), np.flatnonzero(ranks == least)
        moved = costs[ours][:, None] - costs[theirs][None, :]
        mine, its = loads[most] - moved * slowness[most], loads[least] + moved * slowness[least]
        after = np.maximum(mine, its)
        best = int(after.argmin())
        if after.flat[best] >= loads[most] * (1 - 1e-9):
            return
        given, taken = divmod(best, len(theirs))
        ranks[ours[given]], ranks[theirs[taken]] = least, most
        loads[most], loads[least] = mine.flat[best], its.flat[best]


def split_padded(costs: Vector, size: int, speeds: Vector | None = None) -> Places:
    """The same where a rank's batch costs its count times its largest sample.

    The samples are sorted, and cut so that the slowest rank needs as little as possible.

    >>> split_padded(np.array([9.0, 1.0, 2.0, 3.0, 3.0, 3.0]), 2).tolist()
    [0, 1, 1, 0, 1, 1]
    """
    order = np.argsort(-costs, kind="stable")
    slowness = np.ones(size) if speeds is None else float(speeds.mean()) / speeds
    by_speed = np.argsort(slowness, kind="stable")[: len(costs)]
    least = 2 if len(costs) >= 2 * size else 1
    sizes = _cut_padded(costs[order], slowness[by_speed], least)
    ranks = np.empty(len(costs), np.int64)
    ranks[order] = np.repeat(by_speed, sizes)
    return ranks


def _cut_padded(costs: Vector, slowness: Vector, least: int) -> Places:
    """How many of the samples, in descending order, each rank takes; `least` at least."""
    low, high = 0.0, float(costs[0] * len(costs) * slowness.max())
    best = _try_limit(costs, slowness, least, high)
    assert best is not None, "one rank could take all but the least of the others"
    for _ in range(LIMITS_TRIED):
        middle = (low + high) / 2
        found = _try_limit(costs, slowness, least, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _try_limit(costs: Vector, slowness: Vector, least: int, limit: float) -> Places | None:
    """Let each rank take as much as fits into the limit; None if something is left."""
    sizes, first, ranks = np.empty(len(slowness), np.int64), 0, len(slowness)
    for rank in range(ranks):
        left = len(costs) - first
        largest = float(costs[first] * slowness[rank])
        fitting = int(limit / largest * (1 + 1e-12)) if largest else left
        count = min(fitting, left - least * (ranks - rank - 1))
        if count < least:
            return None
        sizes[rank] = count
        first += count
    return sizes if first == len(costs) else None


def _by_rank(places: Places, ranks: Places, size: int) -> list[Places]:
    """The places of each rank, in their order."""
    ends = np.cumsum(np.bincount(ranks, minlength=size))
    ordered = places[np.argsort(ranks, kind="stable")]
    return [ordered[begin:end] for begin, end in pairwise([0, *ends.tolist()])]
