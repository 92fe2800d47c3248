"""How a loop of a user's own goes on without ranks that were lost.

The loop is inside `optimizer.step()`, or at the end of an epoch, and is to notice nothing. So the
exchange that was under way is finished on all ranks that are left, or on none; a new one is made
for them by the code that made the first; and what is left of the epoch is dealt to them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from paceline.comm import World
from paceline.core.vectors import Vector, checksum
from paceline.errors import ConfigError, RanksLost
from paceline.frameworks.replica import Loop, ShareableModel
from paceline.runtime.world import confirm, next_world
from paceline.sync.interface import Exchange, Settled
from paceline.training.loop.shard_epoch import ShardEpochs
from paceline.training.loop.stepper import Stepper
from paceline.training.resume.carried import Change
from paceline.training.resume.continuation import shares_of
from paceline.training.session import current_session

_log = logging.getLogger("paceline.training")


class Recovery:
    """Of one `keep_pace` block."""

    def __init__(self, world: World, loop: Loop, make: Callable[[World], Exchange]) -> None:
        """`make` makes the exchange for a world; all its ranks call it."""
        self._loop, self._make = loop, make
        self._nodes = world.allgather_values(world.node)
        self.epochs = ShardEpochs()
        self.drains = self.leaves = False
        """What this rank does: it takes part without samples; it has left the loop."""

    def go_on(
        self, world: World, exchange: Exchange, stepper: Stepper
    ) -> tuple[World, Exchange, Settled]:
        """Ranks of the world were lost, and all that are left come here, from wherever they are:
        the next world, its exchange, and what became of the step that was under way."""
        rank, settled, kept = world.rank, Settled(), None
        made: Exchange | None = None
        while True:
            try:
                world = next_world(world)
                settled = _join(settled, exchange.settle(world))
                self._take_in(settled, stepper)
                plan = self.epochs.plan(world, rank, self.leaves, stepper.taken_by_rank)
                kept = kept or self._copy_gradients()
                self._make_equal(world, exchange)
                exchange.abandon()
                made = self._make(world)
                made.restore(exchange.snapshot(), same_ranks=False)
                self._put_back(*kept)
                nodes = world.allgather_values(world.node)
                confirm(world)
                break
            except RanksLost:
                if made is not None:
                    made.abandon()
                    made = None
        before, deal = plan
        self.epochs.change(deal, world.rank)
        stepper.change(world.rank, made)
        stepper.taken_by_rank = None
        gone = tuple(old for old in range(len(self._nodes)) if old not in before)
        lost = Change(gone, tuple(self._nodes[old] for old in gone), world.size)
        self._nodes = nodes
        self._tell(world, lost.describe(stepper.steps), deal is not None and not deal.ranks)
        return world, made, settled

    def _take_in(self, settled: Settled, stepper: Stepper) -> None:
        stepper.hear(settled.outcome)
        if settled.counts:
            self.epochs.note_step()
        if self.drains and settled.outcome is not None and not settled.outcome.more:
            self.end_epoch(stepper)

    def end_epoch(self, stepper: Stepper) -> None:
        """All ranks have."""
        self.epochs.end()
        stepper.taken_by_rank = None

    def _copy_gradients(self) -> tuple[Vector, Vector]:
        """Of the step that was under way: they lie in the memory of the old exchange."""
        gradient, present = self._loop.collect_gradients()
        return gradient.copy(), present.copy()

    def _put_back(self, gradient: Vector, present: Vector) -> None:
        self._loop.collect_gradients()[0][:] = gradient
        self._loop.accept_gradients(present)

    def _make_equal(self, world: World, exchange: Exchange) -> None:
        """Replicas that went their own ways go on from their mean, each by its samples since they
        last came together; so a new period begins."""
        if exchange.replicas_stay_equal:
            return
        mine = self._loop.parameters()
        if len(set(world.allgather_values(checksum(mine)))) == 1:
            return
        weights = world.allgather_values(float(exchange.snapshot()["weight"]))
        total = np.multiply(mine, mine.dtype.type(shares_of(weights)[world.rank]))
        world.all_reduce(total)
        mine[:] = total
        self._loop.accept_parameters()

    def _tell(self, world: World, lost: str, was_not_dealt: bool) -> None:
        if world.rank == 0:
            _log.warning(lost)
            if was_not_dealt:
                _log.warning(
                    "what the lost ranks had left of this epoch is left out: it is of a stream, or "
                    "the ranks were in different epochs"
                )


def _join(before: Settled, now: Settled) -> Settled:
    """What became of a step, if more ranks were lost meanwhile."""
    return Settled(before.counts or now.counts, now.outcome or before.outcome)


def choose_elastic(
    asked: bool | None, world: World, loop: Loop, asynchronous: bool, rule: str
) -> bool:
    """Whether a loop goes on without ranks that are lost; None: if this can be had."""
    around = current_session().paces
    insists = asked or any(pace.insists_on_elastic for pace in around)
    if world.size == 1 or (asked is False and not around):
        return False
    if not world.elastic:
        if asked and world.rank == 0:
            _log.warning(
                "a rank that is lost ends this loop: it was not started with `paceline run "
                "--elastic` by an mpirun of Open MPI 5; `paceline run --restarts 3` starts all "
                "ranks again"
            )
        return False
    problem = ""
    if around:
        problem = "keep_pace blocks are nested, and only a single model goes on"
        for pace in around:
            pace.give_up_ranks()
    elif asynchronous:
        problem = f"rule {rule} is asynchronous; use bsp, average or diloco, or a paceline.Trainer"
    elif not isinstance(loop, ShareableModel):  # others do not skip a step that has been taken
        problem = "it goes on with a torch optimizer only; use a paceline.Trainer"
    if not problem:
        return True
    if insists:
        raise ConfigError(f"elastic is True, and {problem}; omit it: then a lost rank ends the run")
    if world.rank == 0 and asked is None:
        _log.warning("a rank that is lost ends this loop: %s", problem)
    return False
