"""A loop's state in one file: what `pace.save` writes and `pace.load` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from paceline.checkpoint.files import load_arrays
from paceline.checkpoint.tree import join, split
from paceline.comm import World
from paceline.comm.rank0 import on_rank0
from paceline.core.files import cannot_write, render_json, synced_draft
from paceline.core.safetensors import Tensor, safetensors_chunks
from paceline.core.trees import Tree
from paceline.core.user_code import describe_failure
from paceline.errors import CheckpointError
from paceline.frameworks.random_state import accept_generator_states, generator_states
from paceline.frameworks.replica import VectorModel
from paceline.sync.replicas import broadcast_tree

_VALUES = "$values"
"""The name of the array that holds, as JSON, all that is no array."""


class Positioned(Protocol):
    """What a shard knows of its place in the data."""

    def position(self) -> dict[str, int]: ...
    def go_on_at(self, epoch: int, taken: int) -> None: ...


def save_loop(
    world: World, model: VectorModel, shards: Sequence[Positioned], path: Path, more: Tree
) -> None:
    """Rank 0 writes all; the ranks come here together, between two steps."""
    own = {
        "buffers": model.buffers().copy(),
        "generators": generator_states(),
        "places": [shard.position() for shard in shards],
    }
    everyone = world.allgather_values(own)

    def write() -> None:
        tree = {
            "layout": model.layout.fingerprint(),
            "parameters": model.parameters(),
            "constants": model.constants(),
            "optimizer": model.optimizer_state(),
            "ranks": list(everyone),
            "more": more,
        }
        _write(path, tree)

    on_rank0(world, write)


def load_loop(
    world: World, model: VectorModel, shards: Sequence[Positioned], path: Path
) -> Tree | None:
    """Take over what `save_loop` wrote, on all ranks; what the loop had added. None: no file."""
    tree = broadcast_tree(world, on_rank0_alone(world, path))
    if not tree:
        return None
    if tree["layout"] != model.layout.fingerprint():
        raise CheckpointError(f"{path} is of another model: names or shapes of weights differ")
    for vector, name, accept in (
        (model.parameters(), "parameters", model.accept_parameters),
        (model.constants(), "constants", model.accept_constants),
    ):
        vector[:] = tree[name]
        accept()
    model.accept_optimizer_state(tree["optimizer"])
    ranks = tree["ranks"]
    same = len(ranks) == world.size
    own = ranks[world.rank if same else 0]
    model.buffers()[:] = own["buffers"] if same else np.mean([r["buffers"] for r in ranks], axis=0)
    model.accept_buffers()
    if same:
        accept_generator_states(own["generators"])
    _restore_places(shards, own["places"], same, path)
    more: Tree = tree["more"]
    return more


def on_rank0_alone(world: World, path: Path) -> Tree:
    """What rank 0 reads, there; its error, or an empty tree, on the others."""
    found: list[Tree] = []

    def read() -> None:
        found.append(_read(path))

    on_rank0(world, read)
    return found[0] if found else {}


def _restore_places(
    shards: Sequence[Positioned], places: Sequence[dict[str, int]], same: bool, path: Path
) -> None:
    if len(shards) != len(places):
        raise CheckpointError(
            f"{path} was saved by a loop with {len(places)} shards of data, and this one has made "
            f"{len(shards)} before pace.load; make the same ones, in the same order"
        )
    if not same and any(place["taken"] for place in places):
        raise CheckpointError(
            f"{path} was saved within an epoch, by another number of ranks; go on with as many as "
            "then, or save between two epochs"
        )
    for shard, place in zip(shards, places, strict=True):
        shard.go_on_at(place["epoch"], place["taken"])


def _write(path: Path, tree: Tree) -> None:
    arrays, values = split(tree)
    text = np.frombuffer(render_json(values), np.uint8)
    tensors = {name: Tensor.of(array) for name, array in {**arrays, _VALUES: text}.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with synced_draft(path) as file:
            for chunk in safetensors_chunks(tensors):
                file.write(chunk)
    except OSError as error:
        raise cannot_write(path, error) from error


def _read(path: Path) -> Tree:
    """What is in the file; nothing if there is none."""
    if not path.exists():
        return {}
    try:
        arrays = load_arrays(path)
        values = json.loads(arrays.pop(_VALUES).tobytes())
        return join(arrays, values)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} is not what pace.save wrote: {describe_failure(error)}"
        ) from error
