"""The centre of an interrupted run, in a form that any number of servers can take over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.chunks import Span
from paceline.core.trees import Tree
from paceline.core.vectors import Vector
from paceline.rules import State

if TYPE_CHECKING:
    from paceline.sync.parameter_server.holdings import Held
    from paceline.sync.parameter_server.ledger import Ledger

Keep = Callable[[int, Tree], None]
"""Takes a part of the checkpoint of that number."""


@dataclass(frozen=True)
class SavedCentre:
    """All of it: the servers' shards, and the batches that workers had in hand."""

    centre: Vector
    state: State
    """The optimizer's: as long as the centre, or of one element."""
    ledger: dict[str, float]
    again: tuple[int, ...] = field(default=())
    """Batches that were granted and not trained on."""
    held: tuple[Held, ...] = field(default=())
    """What each rank has trained on and not given to the centre, if the ranks go on."""
    note: str = ""
    """For the user: what had to be restored from a copy."""

    def piece_of_state(self, piece: Span, fresh: State) -> State:
        """The state for a piece of the centre, in the arrays of a fresh one."""
        for name, array in fresh.items():
            saved = self.state[name]
            array[:] = saved[piece] if saved.size == self.centre.size else saved
        return fresh


def join_states(states: Sequence[State], sizes: Sequence[int]) -> State:
    """One state from those of pieces of so many elements; all have seen the same updates.

    >>> parts = [{"m": np.ones(2), "t": np.array([3.0])}, {"m": np.zeros(1), "t": np.array([3.0])}]
    >>> join_states(parts, [2, 1])
    {'m': array([1., 1., 0.]), 't': array([3.])}
    """
    joined = {}
    for name in states[0] if states else ():
        arrays = [state[name] for state in states]
        whole = all(array.size == size for array, size in zip(arrays, sizes, strict=True))
        joined[name] = np.concatenate(arrays) if whole else arrays[0].copy()
    return joined


def pack(centre: Vector, state: State, ledger: Ledger) -> Tree:
    """A server's part of a checkpoint; the arrays are copies."""
    return {
        "centre": centre.copy(),
        "state": {name: array.copy() for name, array in state.items()},
        "ledger": ledger.snapshot(),
        "waiting": ledger.waiting(),
    }


def unpack(shards: Sequence[Tree], in_hand: Sequence[int]) -> SavedCentre:
    """From the parts of all servers in their order, and the batches that workers had in hand."""
    sizes = [shard["centre"].size for shard in shards]
    first = shards[0]  # it keeps the ledger
    return SavedCentre(
        centre=np.concatenate([shard["centre"] for shard in shards]),
        state=join_states([shard["state"] for shard in shards], sizes),
        ledger=first["ledger"],
        again=tuple(sorted([*first["waiting"], *in_hand])),
    )


def saved_common_weights(exchange: Tree) -> Vector | None:
    """The rule's common weights in what an exchange saved; None: the replica's own.

    >>> saved_common_weights({"state": {"centre": np.ones(1)}, "common_weights": "centre"})
    array([1.])
    """
    common = exchange.get("common_weights")
    if isinstance(common, str):
        state: State = exchange["state"] or {}
        if common not in state:
            raise ValueError(f"the state has no {common}")
        return state[common]
    return common
