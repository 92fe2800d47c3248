"""How much the ranks of a Trainer's run waited for each other, and what would help."""

from __future__ import annotations

import os
from dataclasses import asdict, replace

import numpy as np

from paceline.core.nests import leaves
from paceline.data import ArraySource, Source, Stream
from paceline.observe.step_samples import MOST, StepSamples
from paceline.observe.verdict import RankTimes, judge
from paceline.observe.waiting import RunFacts, advise, split_waiting
from paceline.rules import Rule
from paceline.runtime.resources import cores_of_node
from paceline.sync.interface import Exchange
from paceline.sync.make import resolve
from paceline.training.loop.state import RunState
from paceline.training.session import Serving

_MANY = 64
"""Ranks above which each sends fewer samples of its steps."""


def describe_run(state: RunState) -> RunFacts:
    """What advice for a run depends on, except for its cores."""
    config, train, data = state.config, state.data.train, state.config.data
    is_planned = not isinstance(train, Stream) and data.deal == "planned"
    is_costed = data.cost is not None or data.tokens_per_batch is not None
    kind = resolve(config.rule, config.exchange, state.world).exchange_kind
    return RunFacts(
        asynchronous=state.exchange.asynchronous,
        same_shape=_is_dense(train),
        can_cost=is_planned and not is_costed,
        can_deal=is_planned,
        can_measure_speeds=is_planned and data.speeds == "equal" and kind == "gradients",
    )


def judge_waiting(state: RunState) -> None:
    """Add to the summary how much ranks waited since the run was started or resumed, and advice.

    All ranks come here together, at the end.
    """
    world, summary, facts = state.world, state.summary, describe_run(state)
    summary["waiting"] = summary["advice"] = None
    if facts.asynchronous:
        return
    mine = state.watch.steady()
    crowded = len(world.node_ranks) > cores_of_node(world)
    everyone = world.allgather_values((mine, crowded, _is_busy(len(world.node_ranks))))
    whole_s = sum(record.time.total for record in state.history)
    steps = round(state.clock.step * min(1.0, mine.total / whole_s)) if whole_s > 0 else 0
    waiting = split_waiting({rank: everyone[rank][0] for rank in state.exchange.workers}, steps)
    if waiting is not None:
        crowded, busy = (any(one[field] for one in everyone) for field in (1, 2))
        facts = replace(facts, crowded=crowded, busy=busy)
        verdict = summary["verdict"]
        kind = verdict["kind"] if verdict is not None else None
        if kind in ("rank", "turns", "even"):  # the verdict alone names a rank
            waiting = replace(waiting, slowest_rank=verdict["rank"])
        described = kind in ("rank", "node", "turns")
        summary["waiting"] = waiting.summary()
        summary["advice"] = advise(waiting, facts, described=described)


def judge_steps(state: RunState, times: StepSamples) -> None:
    """Add the verdict to the summary, and where the time of each rank went, since the run was
    started, was resumed, or its ranks changed. All ranks come here together, at the end."""
    world = state.world
    rows = np.array(times.rows(MOST if world.size <= _MANY else MOST // 4), np.float32)
    split = state.watch.total()
    mine = RankTimes(world.node, rows, times.saved_s, split.total), split
    everyone = world.allgather_values(mine)
    workers = {rank: everyone[rank] for rank in state.exchange.workers}
    ranks = {rank: times for rank, (times, _) in workers.items()}
    verdict = judge(ranks, state.exchange.asynchronous)
    state.summary["verdict"] = None if verdict is None else verdict.summary()
    state.summary["workers"] = [
        {"rank": rank, "node": times.node, **asdict(split)}
        for rank, (times, split) in workers.items()
    ]


def _is_busy(ranks: int) -> bool:
    """Whether programs beside these ranks compete for this machine's CPUs."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # not on every system
        return False
    return load > 1 + 1.5 * max(ranks, os.cpu_count() or 1)


def _is_dense(source: Source | Stream) -> bool:
    """Whether its samples lie in arrays, so that all have the same shape."""
    if not isinstance(source, ArraySource):
        return False
    arrays = (leaf for leaf in leaves(source.inputs) if isinstance(leaf, np.ndarray))
    return not any(array.dtype.hasobject for array in arrays)


def describe_loop(rule: Rule, exchange: Exchange, how: Serving) -> RunFacts:
    """For `paceline tune`: what a user's own loop could use against waiting, and does not."""
    balancer, by_speed = how.balancer, rule.exchange_kind == "gradients"
    follows = balancer is not None and balancer.follows_speeds
    return RunFacts(
        own_loop=True,
        asynchronous=exchange.asynchronous,
        can_cost=balancer is None and not how.dealt,
        can_deal=not how.dealt,
        can_measure_speeds=by_speed and not how.dealt and not follows,
    )
