"""What a run trains on, and how its samples are split, weighed and dealt."""

from __future__ import annotations

import logging
import os

from paceline.comm import World
from paceline.config.data import DataConfig
from paceline.config.run import RunConfig
from paceline.data import Stream
from paceline.data.cache.node_cache import NodeCache
from paceline.data.sampling.epochs import depth_ahead
from paceline.errors import ConfigError
from paceline.observe import Stopwatch
from paceline.rules import ExchangeKind
from paceline.runtime.failure import fail
from paceline.runtime.job_dir import AGAIN, ELASTIC
from paceline.sync.make import resolve
from paceline.training.balance import LEARNED, MEASURED, BalanceSettings, make_balancer
from paceline.training.batches import read_weights
from paceline.training.datasets import open_datasets
from paceline.training.loop.dealing import Dealer
from paceline.training.loop.state import Datasets

DYNAMIC = "dynamic"
_log = logging.getLogger("paceline.training")


def open_run_data(config: RunConfig, world: World, cache: NodeCache | None) -> Datasets:
    """Open the data sets, and look at what samples cost; all ranks together."""
    data = config.data
    train, validation = open_datasets(config, world, cache)
    kind = _kind(config, world)
    check_uneven(data, kind, config.exchange.overlap)
    if data.deal == DYNAMIC and isinstance(train, Stream):
        raise ConfigError(
            "data.deal=dynamic takes samples by number, and a stream has none; give data with a "
            "length"
        )
    settings = BalanceSettings(
        data.cost, data.bucketing, data.tokens_per_batch, data.speeds, data.padded
    )
    ahead = depth_ahead(train, data.prefetch, data.loaders)
    weights = read_weights(train, world, data.weight)
    # Batches of asynchronous rules are numbered: each epoch must have equally many.
    numbered = kind in ("centre", "gossip")
    balancer = make_balancer(train, world, settings, ahead, None if numbered else weights)
    usual = None
    if balancer is not None and balancer.balance.budget is not None:
        usual = balancer.balance.usual_batch_size()
    return Datasets(train, validation, balancer, weights, usual)


def make_dealer(config: RunConfig, world: World, data: Datasets, watch: Stopwatch) -> Dealer | None:
    """For data.deal=dynamic; all ranks together."""
    if config.data.deal != DYNAMIC:
        return None
    assert not isinstance(data.train, Stream)
    return Dealer(
        world,
        data.train,
        by_steps=_kind(config, world) == "gradients",
        micro_batch=config.data.micro_batch,
        costs=None if data.balancer is None else data.balancer.balance.costs,
        watch=watch,
        fail=fail,
    )


def check_elastic(config: RunConfig, world: World) -> None:
    """Refuse what cannot go on without ranks that are lost; say so where none of it can."""
    if world.elastic and config.data.deal == DYNAMIC and _kind(config, world) == "weights":
        raise ConfigError(
            "data.deal=dynamic with a rule that merges weights: nobody would know which batches a "
            "rank that is lost had taken since the last exchange; omit it, or --elastic"
        )
    told = os.environ.get(ELASTIC) == AGAIN
    if config.elastic.enabled and not (world.elastic or told) and world.size > 1 and not world.rank:
        _log.warning(
            "a rank that is lost ends this run: it was not started with --elastic by an mpirun of "
            "Open MPI 5"
        )


def _kind(config: RunConfig, world: World) -> ExchangeKind:
    return resolve(config.rule, config.exchange, world).exchange_kind


def check_uneven(data: DataConfig, kind: ExchangeKind, overlap: bool | None = None) -> None:
    """A ConfigError for settings that such an exchange, or another setting, would ignore."""
    asynchronous = kind in ("centre", "gossip")
    learned = data.cost == LEARNED if isinstance(data.cost, str) else False
    dynamic = data.deal == DYNAMIC
    wrong = (
        (
            asynchronous and dynamic,
            "data.deal=dynamic: workers of an asynchronous rule take the next batch when they are "
            "ready as it is",
        ),
        (
            asynchronous and (learned or data.tokens_per_batch is not None),
            "data.cost=learned and data.tokens_per_batch plan each epoch anew, and batches of an "
            "asynchronous rule are numbered through the run; give data.cost otherwise",
        ),
        (
            data.speeds == MEASURED and kind != "gradients",
            "data.speeds=measured is for rule bsp; with average and diloco data.deal=dynamic lets "
            "each rank take the next batch when it is ready",
        ),
        (
            dynamic and (data.speeds == MEASURED or data.tokens_per_batch is not None),
            "data.speeds and data.tokens_per_batch are for planned shares; data.deal is dynamic",
        ),
        (
            dynamic and (learned or data.bucketing is not None),
            "data.bucketing and data.cost=learned are for planned shares; data.deal is dynamic",
        ),
        (
            dynamic and data.cost is not None and kind != "gradients",
            "data.cost puts the longest samples of a step first, and with this rule ranks take "
            "whole batches",
        ),
        (
            dynamic and data.padded is not None,
            "data.padded is for planned shares; data.deal is dynamic",
        ),
        (
            dynamic and bool(overlap) and kind == "gradients",
            "exchange.overlap sends gradients during the last backward of a step, and with "
            "data.deal=dynamic no rank knows which that is",
        ),
        (
            data.micro_batch is not None and not (dynamic and kind == "gradients"),
            "data.micro_batch is for rule bsp with data.deal=dynamic",
        ),
    )
    for is_wrong, text in wrong:
        if is_wrong:
            raise ConfigError(f"{text}; omit it")
