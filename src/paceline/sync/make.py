"""From a rule to the exchange that carries it out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from paceline.comm import World
from paceline.core.vectors import Vector
from paceline.frameworks.replica import VectorModel
from paceline.rules import BSP, CentreRule, GossipRule, GradientRule, Rule, WeightRule
from paceline.sync.asynchronous.centre import CentreExchange
from paceline.sync.asynchronous.gossip import GossipExchange
from paceline.sync.interface import Exchange
from paceline.sync.parameter_server.roles import assign_roles
from paceline.sync.settings import ExchangeContext, ExchangeSettings, check_settings
from paceline.sync.synchronous.shared import make_gradient_exchange
from paceline.sync.synchronous.weights import WeightExchange

_NO_CONTEXT = ExchangeContext()
_ids: ContextVar[int] = ContextVar("ids", default=0)


def next_exchange_id(world: World) -> int:
    """A number for the next exchange of this program, the same on all ranks of the world.

    Some of them may have had more exchanges than others, in a part of the world.
    """
    exchange_id = max(world.allgather_values(_ids.get())) + 1
    _ids.set(exchange_id)
    return exchange_id


def resolve(rule: Rule, settings: ExchangeSettings, world: World) -> Rule:
    """The rule to carry out for this one, in such a world."""
    check_settings(rule, settings)
    resolved = rule.resolve(lossy=settings.lossy)
    # The last rank of an elastic world goes on as it was.
    alone = world.size == 1 and not world.elastic and resolved.trivial_alone
    if alone and resolved.exchange_kind in ("centre", "gossip"):
        assign_roles(world, settings.servers)  # somebody must train
        return BSP()
    return resolved


def is_asynchronous(rule: Rule, settings: ExchangeSettings, world: World) -> bool:
    """Whether workers do not wait for each other by this rule."""
    return resolve(rule, settings, world).exchange_kind in ("centre", "gossip")


def make_exchange(
    world: World, model: VectorModel, rule: Rule, context: ExchangeContext = _NO_CONTEXT
) -> Exchange:
    """The exchange of the kind that the rule needs; the replicas are equal already."""
    resolved = resolve(rule, context.settings, world)
    if isinstance(resolved, GradientRule):
        return make_gradient_exchange(world, model, resolved, context)
    if isinstance(resolved, WeightRule):
        return WeightExchange(world, model, resolved, context)
    if isinstance(resolved, CentreRule):
        return CentreExchange(world, model, resolved, context)
    assert isinstance(resolved, GossipRule), f"{rule.name} is of no family"
    return GossipExchange(world, model, resolved, context)


def load_common_weights(model: VectorModel, exchange: Exchange) -> None:
    """Give the model the rule's common weights, where they are not its own."""
    common = exchange.common_weights()
    if common is not None:
        load_weights(model, common)


def load_weights(model: VectorModel, weights: Vector) -> None:
    """Let the model have these weights."""
    model.parameters()[:] = weights
    model.accept_parameters()


@contextmanager
def with_common_weights(model: VectorModel, exchange: Exchange) -> Iterator[None]:
    """Inside, the model has the rule's common weights; afterwards its own again."""
    common = exchange.common_weights()
    if common is None:
        yield
        return
    own = model.parameters().copy()
    load_weights(model, common)
    try:
        yield
    finally:
        load_weights(model, own)
