"""The centre of asynchronous rules: where it lies, and how a worker reaches it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

from paceline.comm import World
from paceline.core.chunks import split_evenly
from paceline.core.vectors import Vector
from paceline.errors import ConfigError, WorldError
from paceline.rules import CentreRule, PushTerms, State
from paceline.sync.parameter_server.full_ledger import for_workers
from paceline.sync.parameter_server.ledger import LedgerReply, WorkerReport
from paceline.sync.parameter_server.node_centre import NodeCentre
from paceline.sync.parameter_server.remote_centre import RemoteCentre
from paceline.sync.parameter_server.roles import Roles, assign_roles, hosted_by_workers
from paceline.sync.parameter_server.shard_server import ShardServer
from paceline.sync.parameter_server.spec import CentreSpec
from paceline.sync.parameter_server.worker_port import WorkerPort
from paceline.sync.saved import Keep, SavedCentre
from paceline.sync.settings import ExchangeContext, Fail

_SPARE = 32
"""Batches that a worker may have beyond what it wants."""
_RAREST_PUSH = 10_000
"""Steps to which the first push of a rule is looked for."""


class LedgerLink(Protocol):
    """A worker's connection to the ledger, wherever it lies."""

    bytes_sent: int
    """To the centre and back, by this worker."""

    def report(self, report: WorkerReport) -> LedgerReply:
        """Report to the ledger, and get its totals."""

    def save(self, number: int) -> None:
        """Let whoever holds it save it, as it is now; all workers are here."""

    def on_save(self, keep: Keep) -> None:
        """What this rank holds of it, and is asked to save, goes there; maybe from a thread."""

    @property
    def residuals(self) -> State:
        """What goes over from one exchange to the next beside the centre: live arrays."""

    def sign_off(self, quit: bool = False) -> None:
        """This worker will not ask again; with `quit`, since the run is to be resumed later."""

    def carry_over(self, left: World, unreported: int) -> SavedCentre:
        """Ranks were lost: the centre for those that are left, who all come here, each with the
        number of batches that it has trained on and not reported."""

    def abandon(self) -> None:
        """This rank has failed: serve nobody any more."""

    def close(self, out: Vector) -> None:
        """The last state of the centre, on every rank; all come here together."""


class Centre(LedgerLink, Protocol):
    """A worker's connection to the centre."""

    def push_pull(self, report: WorkerReport, terms: PushTerms, port: WorkerPort) -> LedgerReply:
        """One exchange of this worker with the centre."""

    def read_into(self, out: Vector) -> None:
        """Copy the centre as it is now."""


def open_centre(
    world: World, rule: CentreRule, weights: Vector, context: ExchangeContext
) -> tuple[Centre, Roles]:
    """Make the centre together with all ranks, who hold the same weights; and who does what."""
    settings = context.settings
    return _open(world, rule, settings.wire, settings.servers, weights, context)


def open_ledger(
    world: World, weights: Vector, context: ExchangeContext
) -> tuple[LedgerLink, Roles]:
    """A centre without a vector: only its ledger."""
    return _open(world, None, "float32", 0, weights[:0], context)


def _open(
    world: World,
    rule: CentreRule | None,
    wire: str,
    servers: int | None,
    weights: Vector,
    context: ExchangeContext,
) -> tuple[Centre, Roles]:
    roles = assign_roles(world, servers)
    most, saved = most_held(rule, context.most_in_hand), context.saved
    if saved is not None:
        saved = for_workers(saved, roles.workers)
    spec = CentreSpec(rule, wire, context.exchange_id, context.batches, saved, most)
    if not roles.holders:
        try:
            _check_wire(wire, world)
            return NodeCentre(world, spec, weights), roles
        except WorldError as error:  # the same on all ranks
            if servers is not None:
                raise
            roles = hosted_by_workers(world, f"the node's memory is too small: {error}")
    if not weights.size:  # one rank keeps the ledger, and nothing else is to be kept
        roles = replace(roles, holders=roles.holders[:1])
    return _connect(world, spec, weights, roles, context.fail), roles


def most_held(rule: CentreRule | None, in_hand: int) -> int:
    """Batches that a worker may have in hand or not yet given to the centre: those until a push.

    >>> from paceline.rules import Downpour
    >>> most_held(Downpour(push_every=150, pull_every=1), in_hand=18)
    200
    """
    steps = 0
    if rule is not None:
        steps = next((n for n in range(1, _RAREST_PUSH) if rule.due(n)[0]), _RAREST_PUSH)
    return steps + in_hand + _SPARE


def _connect(world: World, spec: CentreSpec, weights: Vector, roles: Roles, fail: Fail) -> Centre:
    server = None
    if spec.saved is not None:
        weights = spec.saved.centre
    if world.rank in roles.holders:
        _check_threads(world, roles)
        piece = split_evenly(weights.size, len(roles.holders))[roles.holders.index(world.rank)]
        on_error = partial(_end_all, world, fail)
        server = ShardServer(world, spec, weights, piece, roles.workers, on_error)
    return RemoteCentre(world, spec, weights, roles, server)


def _end_all(world: World, fail: Fail, error: BaseException) -> None:
    with suppress(WorldError):  # where ranks are threads, this one ends with the others
        fail(world, error)


def _check_wire(wire: str, world: World) -> None:
    if wire != "float32" and world.size > 1:
        raise ConfigError(
            f"exchange.wire is {wire}, but all ranks share a node and the centre lies in its "
            "memory: nothing is sent. Omit it, or set exchange.servers=1"
        )


def _check_threads(world: World, roles: Roles) -> None:
    if world.rank in roles.workers and not world.thread_multiple:
        raise ConfigError(
            "this MPI lets one thread talk at a time, so a worker cannot hold a piece of the "
            "centre; set exchange.servers=1"
        )
