"""Whether the ranks of a loop were given the same data, before they train on it."""

from __future__ import annotations

from paceline.comm import World
from paceline.errors import DataError, PacelineError
from paceline.training.session import Sharded, shards_of

_WORDS = {"content": "other values in its samples", "arrays": "samples of {}"}


def check_same_data(world: World) -> None:
    """Compare what `shard` was given on each rank; raise on all ranks, and say what differs.

    Ranks that have made different numbers of shards (one of them validates, say) are not compared.
    """
    if world.size == 1:
        return
    everyone = world.allgather_values([_describe(shard) for shard in shards_of(world)])
    if len({len(shards) for shards in everyone}) > 1:
        return
    for rank, shards in enumerate(everyone):
        for mine, first in zip(shards, everyone[0], strict=True):
            if mine != first:
                raise DataError(
                    f"the ranks were given different data: rank {rank} has "
                    f"{_tell(mine, first)}, rank 0 {_tell(first, mine)}. Give paceline.shard the "
                    "same data and settings on every rank (seed what makes them alike); it gives "
                    "each rank a part of its own. Ranks that have data of their own need no shard"
                )


def _describe(shard: Sharded) -> dict[str, object]:
    """What cannot be read on one rank must not leave the others waiting."""
    try:
        return shard.describe()
    except PacelineError as error:
        return {"data that cannot be read": str(error)}


def _tell(mine: dict[str, object], other: dict[str, object]) -> str:
    """What is different, in words; the values only where nothing else is."""
    found = {name: value for name, value in mine.items() if other.get(name, ...) != value}
    if len(found) > 1:
        found.pop("content", None)
    return ", ".join(_WORDS.get(name, name + " {}").format(value) for name, value in found.items())
