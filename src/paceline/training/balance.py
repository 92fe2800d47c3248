"""Shares of equal cost: what samples cost, how fast ranks are, and how both are followed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from paceline.comm import World
from paceline.comm.rank0 import on_rank0
from paceline.core.trees import Tree
from paceline.core.vectors import Vector
from paceline.data import Source, Stream
from paceline.data.cost import LENGTH, read_numbers
from paceline.data.padding import Pad
from paceline.data.sampling.learned import CostModel, LengthModel, SampleModel
from paceline.data.sampling.split import Balance, SpeedTable
from paceline.errors import ConfigError, DataError

LEARNED = "learned"
EQUAL, MEASURED = "equal", "measured"
WARM_UP_STEPS = 2
"""Whose times say little: libraries load, memory is reserved."""
_STEPS, _RECENT_STEPS = 16, 3
"""That a rank's speed is measured by: the last ones alone if they differ from all by more than
noise."""
_NOISE = 0.25


class BalanceSettings(NamedTuple):
    """What the user says of uneven work; see docs/uneven.md."""

    cost: object = None
    bucketing: float | None = None
    tokens_per_batch: float | None = None
    speeds: str = EQUAL
    padded: bool | None = None

    @property
    def balances(self) -> bool:
        """Whether samples are split by more than their number."""
        return self.cost is not None or self.tokens_per_batch is not None or self.speeds != EQUAL


class Balancer:
    """What a rank's shares are planned by, and what its steps teach about that.

    All ranks plan alike: what one measures counts when all know it.
    """

    def __init__(self, world: World, balance: Balance, model: CostModel | None) -> None:
        """`model` learns the costs, if they are to be learned."""
        self._world, self.balance, self._model = world, balance, model
        self.speed = 0.0
        """The cost that this rank gets through in a second; 0: not known yet, or not followed."""
        self._done: deque[tuple[float, float]] = deque(maxlen=_STEPS)
        """Cost and seconds of the last steps."""
        self._taken: list[Vector] = []
        self._batch = self._steps_noted = 0
        """Batches of the epoch that were handed out, and steps of the run."""

    @property
    def follows_speeds(self) -> bool:
        return self.balance.speeds is not None

    @property
    def learns(self) -> bool:
        return self._model is not None

    @property
    def has_measured(self) -> bool:
        """Whether this rank has taken a step."""
        return self._steps_noted > 0

    def begin_epoch(self, step: int = 0) -> None:
        """At this step of it."""
        self._batch, self._taken = step, []
        if self.balance.speeds is not None:
            self.balance.speeds.begin_epoch()

    def change_world(self, world: World) -> None:
        """Other ranks take part from now on; what is known of samples stays."""
        self._world = world
        if self.balance.speeds is not None:
            self.balance.speeds.forget()

    def learn(self) -> None:
        """Between two epochs: if costs are learned, all ranks together."""
        if self._model is None:
            return
        costs = learn_together(self._world, self._model)
        if costs is not None:
            self.balance.learn(costs)

    def snapshot(self) -> Tree:
        """The costs that the epoch is planned by."""
        return {"costs": self.balance.costs.copy()}

    def restore(self, saved: Tree) -> None:
        """Go on from what `snapshot` gave."""
        self.balance.use(np.asarray(saved["costs"], float))

    def hand_out(self, indices: Vector) -> None:
        """This rank works on these samples now; a step may consist of several batches."""
        self._batch += 1
        self._taken.append(indices)

    def note_step(self, seconds: float, speeds: Vector | None) -> None:
        """They took so long; `speeds` are what all ranks said of theirs."""
        batches, self._taken = self._taken, []
        if self.balance.speeds is not None and speeds is not None and (speeds > 0).all():
            self.balance.speeds.note(self._batch - 1, speeds)
        if not batches:  # another step on the same batch
            return
        taken = np.concatenate(batches)
        self._steps_noted += 1
        if self._steps_noted <= WARM_UP_STEPS or not len(taken):
            return
        if self._model is not None:
            self._model.note(taken, seconds)
        if self.balance.speeds is not None and seconds > 0:
            self._done.append((float(self.balance.costs[taken].sum()), seconds))
            recent = list(self._done)[-_RECENT_STEPS:]
            if abs(_speed(recent) / _speed(self._done) - 1) > _NOISE:
                self._done = deque(recent, maxlen=_STEPS)
            self.speed = _speed(self._done)


def _speed(steps: Iterable[tuple[float, float]]) -> float:
    cost, seconds = map(sum, zip(*steps, strict=True))
    return cost / seconds if cost else 1e-9


def make_balancer(
    source: Source | Stream,
    world: World,
    settings: BalanceSettings,
    ahead: int = 0,
    weights: Vector | None = None,
) -> Balancer | None:
    """What to split the samples by; None: by count. All ranks call it together.

    Rank 0 looks into the samples, which may take long, and broadcasts what they cost. Batches are
    prepared up to `ahead` steps in advance; `weights` are what samples count, if not alike.
    """
    cost, bucketing, tokens, speeds, padded = settings
    if speeds not in (EQUAL, MEASURED):
        raise ConfigError(f"speeds is {speeds!r}, expected {EQUAL} or {MEASURED}")
    if not settings.balances:
        for name, value in (("bucketing", bucketing), ("padded", padded)):
            if value is not None:
                raise ConfigError(f"{name} is {value}, and there is no cost to split by; set cost")
        return None
    if isinstance(source, Stream):
        raise ConfigError(
            "cost, tokens_per_batch and speeds say which rank gets which samples, and a stream is "
            "split as it comes; give data with a length"
        )
    if tokens is not None and cost is None:
        cost = LENGTH
    if padded is None:
        padded = isinstance(getattr(source, "collate", None), Pad)
    costs, model = read_costs(source, world, cost, padded)
    table = SpeedTable(ahead + 2) if speeds == MEASURED else None
    balance = Balance(costs, bucketing, tokens, padded, weights, table)
    return Balancer(world, balance, model)


def read_costs(
    source: Source, world: World, cost: object, padded: bool = False
) -> tuple[Vector, CostModel | None]:
    """What samples cost, and what learns it, if it is to be learned; all ranks together."""
    if cost is None:
        return np.ones(len(source)), None
    if not (isinstance(cost, str) and cost == LEARNED):
        return read_together(source, world, cost, "cost"), None
    lengths = read_together(source, world, LENGTH, "cost", optional=True)
    if lengths.min() == lengths.max():  # or there are none
        return np.ones(len(source)), SampleModel(len(source))
    return lengths, LengthModel(lengths, padded)


def learn_together(world: World, model: CostModel) -> Vector | None:
    """The costs by what all ranks have measured; None: too little is known."""
    total = model.sums()
    world.all_reduce(total)
    return model.fit(total)


def read_together(
    source: Source, world: World, spec: object, what: str, optional: bool = False
) -> Vector:
    """A number for every sample, read by rank 0 for all; with `optional`, zeros if there is none.

    >>> from paceline.comm import SoloWorld
    >>> from paceline.data import as_source
    >>> read_together(as_source([[3, 1, 4], [1, 5]]), SoloWorld(), "length", "cost").tolist()
    [3.0, 2.0]
    """
    numbers: Vector = np.zeros(len(source))

    def read() -> None:
        try:
            numbers[:] = read_numbers(source, spec, what)
        except DataError:
            if not optional:
                raise

    on_rank0(world, read)
    world.broadcast(numbers)
    return numbers
