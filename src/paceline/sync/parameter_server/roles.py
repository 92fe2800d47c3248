"""Which ranks train, and which hold the centre."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from paceline.comm import World
from paceline.errors import ConfigError


@dataclass(frozen=True)
class Roles:
    """Who does what in a run with a centre."""

    workers: tuple[int, ...]
    holders: tuple[int, ...]
    """Ranks that hold a piece of the centre each; none if it lies in the memory of the node."""
    reason: str

    def describe(self) -> str:
        """For the user: what was chosen, and why."""
        if not self.holders:
            return f"the centre lies in the node's memory ({self.reason})"
        if self.holders == self.workers:
            return f"each worker holds a piece of the centre ({self.reason})"
        servers = f"server{'s' * (len(self.holders) > 1)} {', '.join(map(str, self.holders))}"
        return f"{len(self.workers)} workers, {servers} ({self.reason})"


def assign_roles(world: World, servers: int | None) -> Roles:
    """The roles that the user asked for, or those that suit the nodes.

    All ranks ask together. Rank 0 always trains: it leads.
    """
    nodes = sorted(set(world.allgather_values(world.node_ranks)))
    everyone = tuple(range(world.size))
    reason = "as exchange.servers says"
    if servers is None:
        servers, reason = _suit(nodes)
    if servers == 0:
        return Roles(everyone, () if len(nodes) == 1 else everyone, reason)
    if servers >= world.size and world.generation_number:  # there were more ranks
        return _with_servers(world, nodes, world.size - 1, "of those that are left, one trains")
    if servers >= world.size:
        raise ConfigError(
            f"exchange.servers is {servers} and there are {world.size} ranks, so none is left to "
            f"train; start {servers + 1} or more, or set exchange.servers=0 to lose none"
        )
    return _with_servers(world, nodes, servers, reason)


def _with_servers(world: World, nodes: list[tuple[int, ...]], servers: int, reason: str) -> Roles:
    holders = tuple(sorted(_spread(nodes)[:servers]))
    return Roles(tuple(rank for rank in range(world.size) if rank not in holders), holders, reason)


def hosted_by_workers(world: World, reason: str) -> Roles:
    """Every rank trains and holds a piece of the centre."""
    everyone = tuple(range(world.size))
    return Roles(everyone, everyone, reason)


def _suit(nodes: list[tuple[int, ...]]) -> tuple[int, str]:
    if len(nodes) == 1:
        return 0, "all ranks share it"
    if min(len(ranks) for ranks in nodes) > 1:
        return len(nodes), f"one rank on each of {len(nodes)} nodes"
    return 0, f"{len(nodes)} nodes, some with a single rank, which is better used to train"


def _spread(nodes: list[tuple[int, ...]]) -> list[int]:
    """Ranks in the order in which they become servers: the last of each node in turn, 0 never."""
    turns = zip_longest(*(reversed(ranks) for ranks in nodes))
    return [rank for turn in turns for rank in turn if rank]
