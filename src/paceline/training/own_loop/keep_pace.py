"""`keep_pace`: a loop of your own, which exchanges where its optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paceline.comm import World
from paceline.errors import ConfigError
from paceline.frameworks.registry import make_loop
from paceline.frameworks.threads import limit_threads
from paceline.rules import Rule, make_rule
from paceline.runtime.failure import ending_together, fail
from paceline.runtime.resources import fair_threads
from paceline.runtime.watchdog import watched
from paceline.runtime.world import init, latest
from paceline.sync.make import is_asynchronous
from paceline.sync.settings import ExchangeContext, ExchangeSettings, make_settings
from paceline.training.loop.recovery import choose_elastic
from paceline.training.loop.stepper import StepLimits
from paceline.training.own_loop.pace import Pace
from paceline.training.own_loop.same_data import check_same_data
from paceline.training.session import in_session


@contextmanager
def keep_pace(
    model: Any,
    optimizer: Any,
    rule: str | Mapping[str, Any] | Rule = "bsp",
    *,
    exchange: Mapping[str, Any] | ExchangeSettings | None = None,
    clip_norm: float | None = None,
    max_rejected: int = 10,
    stall_warning_s: float = 30.0,
    stall_timeout_s: float = 1800.0,
    elastic: bool | None = None,
    world: World | None = None,
    **settings_of_rule: object,
) -> Iterator[Pace]:
    """Keep this rank's model in pace with those of the other ranks, inside the block.

    On entry all ranks take over rank 0's parameters and buffers. Each `optimizer.step()` exchanges
    gradients or weights by the rule, weighted by the samples that `shard` handed out (equally
    without it, or as `pace.weigh` says), and clips gradients to `clip_norm`. Ranks whose loops
    end sooner wait in the block's end and take part without samples until all have come; so uneven
    loops never hang. At the end BatchNorm-like buffers are averaged and the model is the same on
    every rank.

    Settings of the rule are keywords: `keep_pace(model, optimizer, "average", every=8)`.

    `exchange` says how (docs/settings.md): with bsp, ranks of one node `share` a single copy of the
    parameters and of the optimizer's state and divide the optimizer's work, which is faster and
    takes less memory. Then nothing but the optimizer may change the parameters (if something does,
    an error says so), and gradients are gone after the step. With `{"share": False}` every rank has
    its own. With `{"overlap": True}` gradients travel to other nodes while backward still runs:
    then a step has one backward, and nothing changes the gradients after it.

    Gradients that are not finite are left out of the step; more than `max_rejected` times on one
    rank end the run. When nothing has moved for `stall_warning_s`, a warning says who is missing;
    after `stall_timeout_s` all ranks are ended.

    With `elastic`, by default in a job that was started with `paceline run --elastic`, a rank that
    is killed does not end the others, by a rule whose ranks wait for each other (bsp, average,
    diloco): the interrupted `optimizer.step()` is finished by those that are left, and `shard`
    deals them the samples that the lost rank had left, in this epoch. So all ranks end an epoch
    together. `pace.world` and `paceline.init()` are the ranks that are left; a world from before
    raises RanksLost. `elastic=False`: a lost rank ends the run.
    """
    world = latest(world or init())
    limit_threads(fair_threads(world))
    rule = make_rule(rule, **settings_of_rule)
    settings = make_settings(exchange)
    if rule.exchange_kind == "gradients" and settings.overlap and not settings.share:
        raise ConfigError(
            "exchange.overlap is for gradients of shared replicas, and exchange.share is false; "
            "omit one of them"
        )
    check_same_data(world)
    loop = make_loop(model, optimizer)
    context = ExchangeContext(settings=settings, clip_norm=clip_norm, fail=fail)
    limits = StepLimits(
        max_rejected, clip_norm, stall_warning_s=stall_warning_s, stall_timeout_s=stall_timeout_s
    )
    goes_on = choose_elastic(
        elastic, world, loop, is_asynchronous(rule, settings, world), rule.name
    )
    pace = Pace(world, loop, rule, context, limits, goes_on, bool(elastic) and goes_on)
    end = loop.around_step(pace.before_step, pace.after_step, lambda: pace.steps_itself)
    try:
        with (
            in_session(pace),
            ending_together(world),
            watched(pace.progress, stall_warning_s, stall_timeout_s),
        ):
            yield pace
            pace.leave()
    except BaseException:
        pace.abandon()
        raise
    finally:
        end()
        loop.release()
