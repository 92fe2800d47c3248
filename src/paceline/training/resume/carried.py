"""What ranks carry over from one generation of the world to the next.

It is restored by the same code as a checkpoint, but lies in the memory of those ranks: each has its
own model and optimizer, and what all have in common comes from the one that is furthest. Samples of
which nothing was kept are dealt again. Ranks that join get what they need from rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from paceline.comm import World
from paceline.core.trees import Tree
from paceline.core.vectors import Vector
from paceline.frameworks.random_state import generator_states
from paceline.frameworks.replica import Replica
from paceline.sync.parameter_server.holdings import Held
from paceline.sync.replicas import broadcast_tree, copy_buffers, copy_state
from paceline.sync.saved import SavedCentre
from paceline.training.resume.continuation import Continuation, shares_of
from paceline.training.resume.snapshot import snapshot_progress

if TYPE_CHECKING:
    from paceline.training.loop.run import TrainingRun

T = TypeVar("T")

_NOTHING = {"taken": 0, "ended": False, "loss_sum": 0.0, "samples_with_loss": 0.0, "seconds": 0.0}


class Change(NamedTuple):
    """Which ranks of the old world are gone, where they were, and who has come."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    left: int
    """How many go on."""
    asked: tuple[int, ...] = ()
    """Those of the ranks that were asked to leave."""
    joined: tuple[str, ...] = ()
    """Where newcomers are, who are the last ranks."""

    def describe(self, step: int) -> str:
        """One line for the user.

        >>> Change((2,), ("n07",), 3).describe(120)
        'rank 2 (n07) was lost; going on after step 120 with 3 ranks'
        >>> Change((1,), ("n07",), 4, asked=(1,), joined=("n08",)).describe(9)
        'rank 1 (n07) left; rank 3 (n08) joined; going on after step 9 with 4 ranks'
        """
        here = dict(zip(self.ranks, self.nodes, strict=True))
        lost = [rank for rank in self.ranks if rank not in self.asked]
        news = (
            (lost, [here[rank] for rank in lost], ("was lost", "were lost")),
            (self.asked, [here[rank] for rank in self.asked], ("left", "left")),
            (range(self.left - len(self.joined), self.left), self.joined, ("joined", "joined")),
        )
        said = [_say(ranks, nodes, verbs) for ranks, nodes, verbs in news if len(ranks)]
        ranks = f"{self.left} rank{'s' * (self.left > 1)}"
        return "; ".join([*said, f"going on after step {step} with {ranks}"])


def _say(ranks: Sequence[int], nodes: Sequence[str], verbs: tuple[str, str]) -> str:
    several = len(ranks) > 1
    who = f"rank{'s' * several} {', '.join(map(str, ranks))}"
    return f"{who} ({', '.join(sorted(set(nodes)))}) {verbs[several]}"


class Carried(Continuation):
    """A run as the ranks that go on know it."""

    def __init__(
        self,
        world: World,
        own: Tree,
        centre: SavedCentre | None,
        known: Tree,
        is_newcomer: bool = False,
    ) -> None:
        """`known` is the same on all ranks: `common`, `facts`, `asynchronous`, the `weights` of the
        replicas, the `parts` of all ranks of the old world, and what has `changed`."""
        self._world, self._own, self._centre, self._known = world, own, centre, known
        self._is_newcomer = is_newcomer
        self.common, self.facts = known["common"], known["facts"]
        ranks, nodes, left, asked, joined = known["changed"]
        self.change = Change(tuple(ranks), tuple(nodes), left, tuple(asked), tuple(joined))
        self.taken = self.everybody(lambda part: part["worker"]["position"]["taken"])
        """How many batches of the epoch count, of every rank of the old world."""

    @classmethod
    def gather(cls, run: TrainingRun, world: World, asked: Sequence[int] = ()) -> Carried:
        """All ranks that are left make it together, when the step that was under way is settled;
        `asked` are those of the old world that were asked to leave."""
        asynchronous, exchange = run.exchange.asynchronous, run.exchange.snapshot()
        own: Tree = {"exchange": exchange, "worker": run.worker.snapshot()}
        if not run.exchange.replicas_stay_equal:
            own["parameters"] = run.replica.parameters().copy()
        if asynchronous:
            own |= {"generators": generator_states(), "callbacks": []}
        standing = (len(run.history), run.clock.epoch, run.exchange.rounds, run.clock.step)
        counts = {name: exchange.get(name, 0.0) for name in ("samples", "weight")}
        found = world.allgather_values(
            (standing, run.world.rank, counts, own["worker"]["position"])
        )
        leader = max(range(world.size), key=lambda rank: (found[rank][0], -rank))
        common, facts, taken = world.bcast_value(
            (snapshot_progress(run), run.facts(), run.worker.taken_by_rank), leader
        )
        parts: dict[int, Tree] = {}
        for (_, epoch, *_), rank, its_counts, its_position in found:
            if epoch < common["clock"]["epoch"]:  # it has had all that it was to have
                its_position = _NOTHING
            parts[rank] = {"exchange": its_counts, "worker": {"position": its_position}}
        behind = run.clock.epoch < common["clock"]["epoch"]
        if any(world.allgather_values(behind)):
            copy_buffers(world, run.replica, leader, behind)
        if not asynchronous:
            _catch_up(run, world, leader, behind, common, list(parts.values()))
        gone = [rank for rank in range(run.world.size) if rank not in parts]
        for rank in gone:
            had = 0 if taken is None else int(taken[rank])
            position = {**_NOTHING, "taken": had}
            parts[rank] = {"exchange": {"weight": 0.0}, "worker": {"position": position}}
        nodes = [run.state.nodes[rank] for rank in gone]
        known = {
            "common": common,
            "facts": facts,
            "asynchronous": asynchronous,
            "weights": [float(its_counts["weight"]) for *_, its_counts, _ in found],
            "parts": [parts[rank] for rank in sorted(parts)],
            "changed": [gone, nodes, world.size, [rank for rank in asked if rank in gone], []],
        }
        return cls(world, own, run.exchange.carried, known)

    def share(self, run: TrainingRun, world: World) -> Carried:
        """The same for the ranks of a world that newcomers have joined; all come here, and those
        get theirs by `receive`."""
        known = self._known
        nodes, first = world.allgather_values(world.node), self._world.size
        known["weights"] += [0.0] * (world.size - first)
        known["changed"] = [*known["changed"][:2], world.size, self.change.asked, nodes[first:]]
        if known["asynchronous"] and "weight" in self._own["exchange"]:  # of gossip: they sum to 1
            self._own["exchange"]["weight"] *= first / world.size
        pair = world.split(int(world.rank > 0))
        if world.rank == 0:
            tree = {
                "own": {name: self._own[name] for name in ("exchange", "worker")},
                "centre": None if self._centre is None else _pack_centre(self._centre),
            }
            place = str(run.state.outputs.run_dir)
            _hand_over(pair, run.replica, tree, (known, place), is_newcomer=False)
        pair.free()
        return Carried(world, self._own, self._centre, known)

    @classmethod
    def receive(cls, replica: Replica, world: World) -> tuple[Carried, Path]:
        """What a newcomer gets: a model like rank 0's, where the run is, and its directory."""
        world.allgather_values(world.node)
        pair = world.split(0)
        got, (known, run_dir) = _hand_over(pair, replica, {}, ({}, ""), is_newcomer=True)
        pair.free()
        centre = None if got["centre"] is None else _unpack_centre(got["centre"])
        own = {**got["own"], "parameters": replica.parameters().copy()}
        if centre is not None and centre.centre.size:
            own["parameters"] = centre.centre
        return cls(world, own, centre, known, is_newcomer=True), Path(run_dir)

    @property
    def same_ranks(self) -> bool:
        """Workers of asynchronous rules go on as they are."""
        return bool(self._known["asynchronous"]) and not self._is_newcomer

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
        note = "" if self._centre is None else self._centre.note
        return "; ".join(filter(None, (self.change.describe(self.facts["step"]), note)))

    def everybody(self, take: Callable[[Tree], T]) -> list[T]:
        """Of every rank of the old world, the lost ones included."""
        return [take(part) for part in self._known["parts"]]

    def parameters(self) -> Vector:
        """A newcomer to workers that go on as they are asks none of them."""
        if self._known["asynchronous"]:
            own: Vector = self.own["parameters"]
            return own
        return super().parameters()

    def _mean(self, total: Vector) -> Vector:
        share = shares_of(self._known["weights"])[self._world.rank]
        np.multiply(self.own["parameters"], total.dtype.type(share), out=total)
        self._world.all_reduce(total)
        return total


def _catch_up(
    run: TrainingRun, world: World, leader: int, behind: bool, common: Tree, parts: Sequence[Tree]
) -> None:
    """Let this rank's run stand where the leader's does, if ranks are lost again before the next
    step. Between two exchanges a rank guesses what the others do; now it is known."""
    since = sum(part["exchange"]["samples"] for part in parts)
    guessed = world.bcast_value(run.worker.estimated_samples, leader)
    for name in ("samples", "samples_in_epoch"):
        common["clock"][name] += int(since - guessed)
    if behind:
        run.worker.begin_epoch()
    for name, part in run.common_parts().items():
        part.restore(common[name])
    run.worker.estimated_samples = int(since)


def _hand_over(
    pair: World, replica: Replica, tree: Tree, values: tuple[Tree, str], is_newcomer: bool
) -> tuple[Tree, tuple[Tree, str]]:
    """From rank 0 to newcomers: the model with its optimizer, the tree and the values."""
    copy_state(pair, replica, 0, is_newcomer)
    copy_buffers(pair, replica, 0, is_newcomer)
    constants = replica.constants()
    if constants.size:
        pair.broadcast(constants)
        if is_newcomer:
            replica.accept_constants()
    return broadcast_tree(pair, tree), pair.bcast_value(values)


def _pack_centre(centre: SavedCentre) -> Tree:
    return {
        "centre": centre.centre,
        "state": dict(centre.state),
        "ledger": {name: float(value) for name, value in centre.ledger.items()},
        "again": list(centre.again),
        "held": [[*its[:4], list(its.numbers)] for its in centre.held],
    }


def _unpack_centre(tree: Tree) -> SavedCentre:
    held = tuple(
        Held(samples, loss, without_loss, batches, tuple(numbers))
        for samples, loss, without_loss, batches, numbers in tree["held"]
    )
    return SavedCentre(tree["centre"], tree["state"], tree["ledger"], tuple(tree["again"]), held)
