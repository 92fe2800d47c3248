"""Where the ranks of a user's loop are in an epoch of a shard, and what is left of it for whom when
some of them are lost.

A rank has handed out batches, and taken its steps with most of them; what it has in hand goes into
its next step. Of a rank that is lost, those batches count that it had taken at the last exchange;
all others, and what it had in hand, are dealt to those that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from paceline.comm import World
from paceline.core.vectors import Vector
from paceline.data import EpochRemainder, Shard
from paceline.data.sampling.partial_epoch import Ranges, as_ranges
from paceline.data.sampling.split import EpochSplit

Name = tuple[object, ...]
"""Which epoch of which shard it is, the same on all ranks."""


@dataclass
class ShardEpoch:
    """An epoch of a shard, as one rank is in it."""

    name: Name
    epoch: int
    remainder: EpochRemainder
    ranks: tuple[int, ...]
    """Who share it; empty if it is not dealt again."""
    shard: Shard
    """This rank's part."""
    split: Callable[[EpochRemainder], EpochSplit] | None
    """Which samples each rank takes; None: of a stream nobody knows."""
    taken: int = 0
    """Batches of the remainder that this rank has handed out."""
    stepped: int = 0
    """Those that it has taken a step with."""
    in_hand: tuple[Ranges, ...] = ()
    """What else each rank of the world had in hand when the remainder was dealt."""
    holds: bool = False
    """Whether this rank still has that in hand."""
    deals: int = 0
    """How often it was dealt again."""

    def change(self, deal: RestOfEpoch, rank: int) -> None:
        """Go on with what was dealt."""
        if not deal.ranks:
            self.ranks = ()
            return
        self.remainder = EpochRemainder(len(deal.ranks), self.remainder.batch_size, deal.left)
        self.ranks, self.in_hand = deal.ranks, deal.in_hand
        self.shard = Shard(deal.ranks.index(rank), len(deal.ranks))
        self.taken, self.stepped, self.holds = 0, 0, True
        self.deals += 1


class RestOfEpoch(NamedTuple):
    """What is left of an epoch, the same on all ranks of the next world."""

    name: Name
    left: Ranges
    ranks: tuple[int, ...]
    """Who share it; none: all go on as they were."""
    in_hand: tuple[Ranges, ...]


class _Standing(NamedTuple):
    """Where a rank is that is left."""

    rank: int
    """In the world before."""
    leaves: bool
    """It has nothing more to train on."""
    name: Name | None
    taken: int = 0
    stepped: int = 0
    holds: bool = False
    """It has in hand what it had when the remainder was dealt."""


@dataclass
class ShardEpochs:
    """Those that a loop has begun."""

    current: ShardEpoch | None = None
    """The one that it trains on."""
    _begun: dict[object, ShardEpoch] = field(default_factory=dict)
    _dealt: dict[Name, RestOfEpoch] = field(default_factory=dict)
    """Before this rank has begun them."""

    @property
    def taken(self) -> int:
        return 0 if self.current is None else self.current.taken

    def begin(self, by: object, fresh: ShardEpoch, rank: int, is_trained: bool) -> ShardEpoch:
        """The loop iterates over a shard. `is_trained`: it has trained on it before."""
        deal = self._dealt.pop(fresh.name, None)
        if deal is not None and deal.ranks:
            fresh.change(deal, rank)
        self._begun[by] = fresh
        if is_trained or deal is not None:
            self.current = fresh
        return fresh

    def train_on(self, by: object) -> None:
        """A step is taken with batches of this shard."""
        self.current = self._begun.get(by)

    def is_trained(self, by: object) -> bool:
        return self.current is not None and self._begun.get(by) is self.current

    def note_step(self) -> None:
        """A step has been taken with all that was in hand."""
        if self.current is not None:
            self.current.stepped, self.current.holds = self.current.taken, False

    def end(self) -> None:
        """All ranks have ended it."""
        self.current = None

    def plan(
        self, world: World, rank: int, leaves: bool, reported: Vector | None
    ) -> tuple[list[int], RestOfEpoch | None]:
        """Ranks were lost, and those that are left, in `world`, come here: who they were before,
        and what is left for them. `rank` is this one's number before, and `reported` what each had
        taken at the last exchange."""
        at = self.current
        own = _Standing(rank, leaves, None)
        if at is not None:
            own = _Standing(rank, leaves, at.name, at.taken, at.stepped, at.holds)
        everyone = world.allgather_values(own)
        before = [standing.rank for standing in everyone]
        names = {standing.name for standing in everyone if standing.name is not None}
        if not names:
            return before, None
        source = next(at for at, standing in enumerate(everyone) if standing.name is not None)
        deal: RestOfEpoch | None = None
        if world.rank == source:
            assert at is not None
            deal = _deal(at, everyone, reported, is_common=len(names) == 1)
        return before, world.bcast_value(deal, source)

    def change(self, deal: RestOfEpoch | None, rank: int) -> None:
        """All ranks go on with this deal."""
        self._dealt = {}
        if deal is None:
            return
        if self.current is None:
            self._dealt[deal.name] = deal
        elif rank in deal.ranks or not deal.ranks:
            self.current.change(deal, rank)
        else:
            self.current = None


def _deal(
    at: ShardEpoch, everyone: Sequence[_Standing], reported: Vector | None, is_common: bool
) -> RestOfEpoch:
    if at.split is None or not at.ranks or not is_common:
        return RestOfEpoch(at.name, (), (), ())
    split = at.split(at.remainder)
    standings = {standing.rank: standing for standing in everyone}
    left = np.zeros(split.samples, bool)
    for part, rank in enumerate(at.ranks):
        taken = 0 if reported is None else int(reported[rank])
        if rank in standings and standings[rank].name is not None:
            taken = standings[rank].taken
        for step in range(taken, split.batches(part)):
            left[split.share(step, part)] = True
    if reported is None:  # no step since the last deal: who is lost still had this in hand
        for rank, ranges in enumerate(at.in_hand):
            for first, last in ranges if rank not in standings else ():
                left[first:last] = True
    in_hand = tuple(_in_hand(at, split, standing) for standing in everyone)
    sharers = tuple(new for new, standing in enumerate(everyone) if not standing.leaves)
    return RestOfEpoch(at.name, as_ranges(np.flatnonzero(left)), sharers, in_hand)


def _in_hand(at: ShardEpoch, split: EpochSplit, standing: _Standing) -> Ranges:
    """What a rank has handed out and has not taken a step with."""
    before = at.in_hand[standing.rank] if standing.holds and at.in_hand else ()
    if standing.stepped == standing.taken:
        return before
    held = np.zeros(split.samples, bool)
    part = at.ranks.index(standing.rank)
    for step in range(standing.stepped, standing.taken):
        held[split.share(step, part)] = True
    for first, last in before:
        held[first:last] = True
    return as_ranges(np.flatnonzero(held))
