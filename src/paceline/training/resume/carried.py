"""What the ranks that are left carry over from one generation of the world to the next.

It is restored by the same code as a checkpoint, but lies in the memory of those ranks: each has its
own model and optimizer, and what all have in common comes from the one that is furthest. Samples of
which nothing was kept are dealt again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from paceline.comm import World
from paceline.core.trees import Tree
from paceline.core.vectors import Vector
from paceline.frameworks.random_state import generator_states
from paceline.sync.replicas import copy_buffers
from paceline.sync.saved import SavedCentre
from paceline.training.resume.continuation import Continuation, shares_of
from paceline.training.resume.snapshot import snapshot_progress

if TYPE_CHECKING:
    from paceline.training.loop.run import TrainingRun

T = TypeVar("T")

_NOTHING = {"taken": 0, "ended": False, "loss_sum": 0.0, "samples_with_loss": 0.0, "seconds": 0.0}


class LostRanks(NamedTuple):
    """Which ranks of the old world were lost, where they were, and how many are left."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    left: int

    def describe(self, step: int) -> str:
        """One line for the user.

        >>> LostRanks((2,), ("n07",), 3).describe(120)
        'rank 2 (n07) was lost; going on after step 120 with 3 ranks'
        """
        several = len(self.ranks) > 1
        who = f"rank{'s' * several} {', '.join(map(str, self.ranks))}"
        hosts, were = ", ".join(sorted(set(self.nodes))), "were" if several else "was"
        ranks = f"{self.left} rank{'s' * (self.left > 1)}"
        return f"{who} ({hosts}) {were} lost; going on after step {step} with {ranks}"


class Carried(Continuation):
    """A run as the ranks that are left know it."""

    def __init__(self, run: TrainingRun, world: World) -> None:
        """All ranks that are left make it together, when the step that was under way is settled."""
        self._world = world
        self._same, self._centre = run.exchange.asynchronous, run.exchange.carried
        exchange = run.exchange.snapshot()
        self._own: Tree = {"exchange": exchange, "worker": run.worker.snapshot()}
        if not run.exchange.replicas_stay_equal:
            self._own["parameters"] = run.replica.parameters().copy()
        if self._same:
            self._own |= {"generators": generator_states(), "callbacks": []}
        standing = (len(run.history), run.clock.epoch, run.exchange.rounds, run.clock.step)
        counts = {name: exchange.get(name, 0.0) for name in ("samples", "weight")}
        position = self._own["worker"]["position"]
        found = world.allgather_values((standing, run.world.rank, counts, position))
        self._leader = max(range(world.size), key=lambda rank: (found[rank][0], -rank))
        known = snapshot_progress(run), run.facts(), run.worker.taken_by_rank
        self.common, self.facts, taken = world.bcast_value(known, self._leader)
        self._weights = [float(its_counts["weight"]) for *_, its_counts, _ in found]
        self._parts: dict[int, Tree] = {}
        for (_, epoch, *_), rank, its_counts, its_position in found:
            if epoch < self.common["clock"]["epoch"]:  # it has had all that it was to have
                its_position = _NOTHING
            self._parts[rank] = {"exchange": its_counts, "worker": {"position": its_position}}
        behind = run.clock.epoch < self.common["clock"]["epoch"]
        if any(world.allgather_values(behind)):
            copy_buffers(world, run.replica, self._leader, behind)
        if not self._same:
            self._catch_up(run, behind)
        lost = [rank for rank in range(run.world.size) if rank not in self._parts]
        for rank in lost:
            had = 0 if taken is None else int(taken[rank])
            position = {**_NOTHING, "taken": had}
            self._parts[rank] = {"exchange": {"weight": 0.0}, "worker": {"position": position}}
        self.taken = self.everybody(lambda part: part["worker"]["position"]["taken"])
        """How many batches of the epoch count, of every rank of the old world."""
        nodes = tuple(run.state.nodes[rank] for rank in lost)
        self.lost = LostRanks(tuple(lost), nodes, world.size)

    def _catch_up(self, run: TrainingRun, behind: bool) -> None:
        """Let this rank's run stand where the leader's does, if ranks are lost again before the
        next step. Between two exchanges a rank guesses what the others do; now it is known."""
        since = sum(part["exchange"]["samples"] for part in self._parts.values())
        guessed = self._world.bcast_value(run.worker.estimated_samples, self._leader)
        for name in ("samples", "samples_in_epoch"):
            self.common["clock"][name] += int(since - guessed)
        if behind:
            run.worker.begin_epoch()
        for name, part in run.common_parts().items():
            part.restore(self.common[name])
        run.worker.estimated_samples = int(since)

    @property
    def same_ranks(self) -> bool:
        """Workers of asynchronous rules go on as they are."""
        return self._same

    @property
    def centre(self) -> SavedCentre | None:
        return self._centre

    @property
    def own(self) -> Tree:
        return self._own

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """There is no file to blame."""
        yield

    def describe(self) -> str:
        return self.lost.describe(self.facts["step"])

    def everybody(self, take: Callable[[Tree], T]) -> list[T]:
        """Of every rank of the old world, the lost ones included."""
        return [take(self._parts[rank]) for rank in sorted(self._parts)]

    def _mean(self, total: Vector) -> Vector:
        share = shares_of(self._weights)[self._world.rank]
        np.multiply(self.own["parameters"], total.dtype.type(share), out=total)
        self._world.all_reduce(total)
        return total
