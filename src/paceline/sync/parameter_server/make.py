"""The centre of asynchronous rules: where it lies, how a worker reaches it, who keeps count."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from paceline.comm import World
from paceline.core.chunks import split_evenly
from paceline.core.vectors import Vector
from paceline.errors import ConfigError, WorldError
from paceline.rules import PushTerms, State
from paceline.sync.parameter_server.ledger import LedgerReply, WorkerReport
from paceline.sync.parameter_server.node_centre import NodeCentre
from paceline.sync.parameter_server.remote_centre import RemoteCentre
from paceline.sync.parameter_server.roles import Roles, assign_roles, hosted_by_workers
from paceline.sync.parameter_server.shard_server import ShardServer
from paceline.sync.parameter_server.worker_port import (
    BufferedPort,
    DistanceProbe,
    InPlacePort,
    WorkerPort,
)
from paceline.sync.saved import Keep, SavedCentre
from paceline.sync.settings import Fail, abort

__all__ = [
    "BufferedPort",
    "Centre",
    "DistanceProbe",
    "InPlacePort",
    "LedgerReply",
    "Roles",
    "SavedCentre",
    "WorkerPort",
    "WorkerReport",
    "message_tags",
    "open_centre",
]

_FIRST_TAG = 1000


def message_tags(number: int) -> tuple[int, int, int]:
    """For the exchange of that number: the tags of requests, replies and pushes to peers."""
    first = _FIRST_TAG + 3 * (number % _NUMBERS)
    return first, first + 1, first + 2


_NUMBERS = 5000
"""Exchanges of one program that are told apart; MPI promises tags up to 32767."""


class Centre(Protocol):
    """What a worker asks of the centre, wherever it lies."""

    bytes_sent: int
    """To the centre and back, by this worker."""

    def report(self, report: WorkerReport) -> LedgerReply:
        """Tell the ledger, and hear from it."""

    def push_pull(self, report: WorkerReport, terms: PushTerms, side: WorkerPort) -> LedgerReply:
        """One exchange of this worker with the centre."""

    def read_into(self, out: Vector) -> None:
        """Copy the centre as it is now."""

    def save(self, number: int) -> None:
        """Let whoever holds it keep it, as it is now, for a checkpoint; all workers are here."""

    def on_save(self, keep: Keep) -> None:
        """What this rank holds of it, and is asked to save, goes there; maybe from a thread."""

    @property
    def residuals(self) -> State:
        """What goes over from one exchange to the next beside the centre: live arrays."""

    def sign_off(self, quit: bool = False) -> None:
        """This worker will not ask again; with `quit`, since the run is to go on later."""

    def abandon(self) -> None:
        """This rank has failed: serve nobody any more."""

    def close(self, out: Vector) -> None:
        """The last state of the centre, on every rank; all come here together."""


def open_centre(
    world: World,
    rule: Any,
    servers: int | None,
    weights: Vector,
    number: int,
    batches: int,
    saved: SavedCentre | None = None,
    fail: Fail = abort,
) -> tuple[Centre, Roles]:
    """Make the centre together with all ranks, who hold the same weights; and who does what.

    `fail` ends all ranks when the thread of a host has failed.
    """
    roles = assign_roles(world, servers)
    if not roles.hosts:
        try:
            _check_wire(rule, world)
            return NodeCentre(world, rule, weights, world.rank, batches, saved), roles
        except WorldError as error:  # the same on all ranks
            if servers is not None:
                raise
            roles = hosted_by_workers(world, f"the node's memory is too small: {error}")
    if not weights.size:  # one rank keeps the ledger, and nothing else is to be kept
        roles = replace(roles, hosts=roles.hosts[:1])
    return _reach(world, rule, weights, roles, number, batches, saved, fail), roles


def _reach(
    world: World,
    rule: Any,
    weights: Vector,
    roles: Roles,
    number: int,
    batches: int,
    saved: SavedCentre | None,
    fail: Fail,
) -> Centre:
    tags = message_tags(number)[:2]
    host = None
    if saved is not None:
        weights = saved.centre
    if world.rank in roles.hosts:
        _check_threads(world, roles)
        piece = split_evenly(weights.size, len(roles.hosts))[roles.hosts.index(world.rank)]
        on_error = partial(_end_all, world, fail)
        own = (saved, piece) if saved is not None else None
        host = ShardServer(world, rule, weights[piece], roles.workers, batches, tags, on_error, own)
    return RemoteCentre(world, rule, weights, roles, tags, host)


def _end_all(world: World, fail: Fail, error: BaseException) -> None:
    with suppress(WorldError):  # where ranks are threads, this one ends with the others
        fail(world, error)


def _check_wire(rule: Any, world: World) -> None:
    if rule.wire != "float32" and world.size > 1:
        raise ConfigError(
            f"rule.wire is {rule.wire}, but all ranks share a node and the centre lies in its "
            "memory: nothing is sent. Leave it out, or set rule.servers=1"
        )


def _check_threads(world: World, roles: Roles) -> None:
    if world.rank in roles.workers and not world.thread_multiple:
        raise ConfigError(
            "this MPI lets one thread talk at a time, so a worker cannot hold a piece of the "
            "centre; set rule.servers=1"
        )
