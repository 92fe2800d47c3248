"""Facts about a run: what one that goes on must match, how its batches are numbered, and what the
user is told at the start."""

from __future__ import annotations

from paceline.comm import World
from paceline.config.run import RunConfig
from paceline.core.trees import Tree
from paceline.core.vectors import checksum
from paceline.data import Stream, batches_per_epoch
from paceline.frameworks import Replica
from paceline.sync.interface import Exchange
from paceline.sync.make import is_asynchronous
from paceline.training.loop.state import Datasets
from paceline.training.resume.continuation import Continuation


def identify(config: RunConfig, world: World, replica: Replica, data: Datasets) -> Tree:
    """Facts that a resumed run must match."""
    train, balancer = data.train, data.balancer
    fixed = balancer is not None and not balancer.learns
    facts = {
        "model": replica.layout.fingerprint(),
        "rule": config.rule.name,
        "seed": config.seed,
        "shuffle": config.data.shuffle,
        "samples_of_data": None if isinstance(train, Stream) else len(train),
        "order_of_data": getattr(train, "order_facts", None) if config.data.shuffle else None,
        "asynchronous": is_asynchronous(config.rule, config.exchange, world),
        "costs_of_data": checksum(balancer.balance.costs) if balancer and fixed else None,
        "bucketing": config.data.bucketing,
        "weights_of_data": None if data.weights is None else checksum(data.weights),
        "tokens_per_batch": config.data.tokens_per_batch,
        "padded": None if balancer is None else balancer.balance.padded,
        "deal": config.data.deal,
    }
    if facts["asynchronous"]:  # batches are numbered through the run
        facts["batch"] = config.data.batch_size * config.accumulate
    return facts


def numbered_for(world: World, resumed: Continuation | None) -> int:
    """For how many workers batches are numbered: those that the run began with."""
    return world.size if resumed is None else int(resumed.facts["numbered_for"])


def batches_to_grant(
    config: RunConfig, world: World, data: Datasets, resumed: Continuation | None
) -> int:
    """Of the whole run, if it is asynchronous."""
    if not is_asynchronous(config.rule, config.exchange, world):
        return 0
    size = config.data.batch_size * config.accumulate
    balance = None if data.balancer is None else data.balancer.balance
    workers = numbered_for(world, resumed)
    return config.epochs * batches_per_epoch(data.train, size, workers, balance)


def describe_start(config: RunConfig, world: World, exchange: Exchange, data: Datasets) -> str:
    """What is trained, by whom; all ranks call it."""
    train, nodes = data.train, len(set(world.allgather_values(world.node)))
    batch = (data.usual_batch or config.data.batch_size) * config.accumulate
    about = "about " if data.usual_batch else ""
    in_all = "" if exchange.asynchronous else f" ({about}{batch * world.size} in all)"
    samples = "a stream" if isinstance(train, Stream) else f"{len(train):,} samples"
    text = (
        f"{world.size} rank{'s' * (world.size > 1)} on {nodes} node{'s' * (nodes > 1)}, "
        f"rule {config.rule.name}, batch {about}{batch} per rank{in_all}, "
        f"{train.name}: {samples}"
    )
    return "\n".join(filter(None, (text, exchange.describe())))
