"""A run that goes on: what each rank gets of what was.

With as many ranks as before every rank gets back what it had, to the last bit. With another number,
the replicas of a rule that keeps them equal are what they were; those that differ continue
from their mean, their consensus or the centre, each with the optimizer of one of the old ranks.
The samples that were left are sharded anew in either case, so that each comes exactly once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeVar

import numpy as np

from paceline.comm import World
from paceline.core.trees import Tree
from paceline.core.vectors import Vector
from paceline.data import EpochRemainder
from paceline.data.sampling.split import EpochSplit, rest_of
from paceline.sync.saved import SavedCentre
from paceline.training.loop.position import EpochPosition

T = TypeVar("T")


class Continuation(ABC):
    """Where a run goes on, as this rank sees it."""

    facts: Tree
    """What the run was."""
    common: Tree
    """What all ranks have in common."""
    _world: World
    """The ranks that go on."""

    @property
    @abstractmethod
    def own(self) -> Tree:
        """What this rank had; if the number of ranks changed, what one of them had."""

    @property
    @abstractmethod
    def centre(self) -> SavedCentre | None:
        """The centre, or the ledger of workers without one."""

    @property
    @abstractmethod
    def same_ranks(self) -> bool:
        """Whether they are as many as there were, and each goes on where it was."""

    @abstractmethod
    def everybody(self, take: Callable[[Tree], T]) -> list[T]:
        """The same of every worker's part, in order."""

    @abstractmethod
    def describe(self) -> str:
        """Where the run continues, for the user."""

    @abstractmethod
    def blamed(self) -> AbstractContextManager[None]:
        """Inside, errors about unusual contents name their cause."""

    @abstractmethod
    def _mean(self, total: Vector) -> Vector:
        """Of the replicas: by the weights of gossip, or the samples since the last exchange; added
        to zeros."""

    def parameters(self) -> Vector:
        """This rank's; if the number of ranks changed, those that all start from."""
        if self.centre is not None and self.centre.centre.size and not self.same_ranks:
            return self.centre.centre
        own: Vector = self.own["parameters"]
        return own if self.same_ranks else self._mean(np.zeros_like(own))

    def position(
        self,
        fresh: EpochRemainder,
        split: Callable[[EpochRemainder], EpochSplit] | None,
        asynchronous: bool,
    ) -> tuple[EpochPosition, bool]:
        """Where this rank continues in its epoch, and whether that is sharded as before.

        `fresh` is a whole epoch for the present ranks; `split` says which samples each rank took
        (None: a stream)."""
        own = self.own["worker"]["position"]
        remainder, taken, same_shards = fresh, 0, True
        if not asynchronous:
            remainder, taken, same_shards = self._remainder(fresh, split)
        position = EpochPosition(
            remainder,
            taken,
            ended=not asynchronous and same_shards and own["ended"],
            loss_sum=self._share("loss_sum"),
            samples_with_loss=self._share("samples_with_loss"),
            before_s=own["seconds"],
        )
        return position, same_shards

    def _remainder(
        self, fresh: EpochRemainder, split: Callable[[EpochRemainder], EpochSplit] | None
    ) -> tuple[EpochRemainder, int, bool]:
        """What is left of the epoch, how many batches of it this rank has had, and whether it is
        sharded as before."""
        saved = self.common["remainder"]
        ranges = None if saved["ranges"] is None else tuple(map(tuple, saved["ranges"]))
        before = EpochRemainder(saved["size"], saved["batch_size"], ranges)
        if replace(before, ranges=None) == fresh and self.same_ranks:
            return before, self.own["worker"]["position"]["taken"], True
        taken = self.everybody(lambda part: part["worker"]["position"]["taken"])
        if ranges is None and not any(taken):
            return fresh, 0, False
        rest = before.rest_of_stream(taken) if split is None else rest_of(split(before), taken)
        return replace(fresh, ranges=rest), 0, False

    def _share(self, name: str) -> float:
        """This rank's share of a sum over the epoch so far."""
        if self.same_ranks:
            return float(self.own["worker"]["position"][name])
        everyone = self.everybody(lambda part: part["worker"]["position"][name])
        return float(sum(everyone)) if self._world.rank == 0 else 0.0


def shares_of(weights: list[float]) -> list[float]:
    """The part that each has of their sum; equal ones if there is none.

    >>> shares_of([1.0, 3.0]), shares_of([0.0, 0.0])
    ([0.25, 0.75], [0.5, 0.5])
    """
    given = np.array(weights, float)
    total = given.sum()
    shares: list[float] = (given / total if total else np.full(len(given), 1 / len(given))).tolist()
    return shares
