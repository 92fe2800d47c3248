"""What the ranks of `bench ddp` do: sum tensors and train by DDP, on two backends in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import paceline.torch_backend  # noqa: F401 (registers mpi4py)
from paceline.comm import World
from paceline.frameworks.threads import limit_threads
from paceline.runtime.resources import fair_threads
from paceline.tools.bench.allreduce import render_size
from paceline.tools.bench.ddp import DDPSettings, DDPTimes
from paceline.tools.bench.harness import say
from paceline.tools.bench.ranks.allreduce import SumContestant, check_result, timed
from paceline.tools.bench.ranks.peers import gloo_group
from paceline.tools.bench.ranks.step import NETWORKS, WARM_UP, Learner, count_steps, time_steps
from paceline.tools.bench.ranks.timing import best_of

BACKENDS = ("mpi4py", "gloo")


def measure(world: World, settings: DDPSettings) -> list[DDPTimes]:
    """Seconds per sum of each size, and per step of each network, on each backend."""
    limit_threads(fair_threads(world))
    with gloo_group(world):
        groups = {name: dist.new_group(backend=name) for name in BACKENDS}
        sums = [_measure_sum(world, groups, nbytes, settings) for nbytes in settings["sizes"]]
        steps = [_measure_network(world, groups, name, settings) for name in settings["networks"]]
        for group in groups.values():
            dist.destroy_process_group(group)
    return sums + steps


def _measure_sum(
    world: World, groups: dict[str, dist.ProcessGroup], nbytes: int, settings: DDPSettings
) -> DDPTimes:
    contestants: dict[str, Callable[[], float]] = {}
    for name, group in groups.items():
        tensor = torch.empty(nbytes // 4)
        call = partial(dist.all_reduce, tensor, group=group)
        check_result(world, name, SumContestant(call, tensor.numpy()))
        tensor.zero_()  # a sum of sums of sums would soon be infinite
        contestants[name] = timed(world, call, settings["span_s"])
    seconds = best_of(settings["rounds"], contestants)
    _report(world, render_size(nbytes), seconds)
    return {"bytes": nbytes, "seconds": seconds}


def _measure_network(
    world: World, groups: dict[str, dist.ProcessGroup], name: str, settings: DDPSettings
) -> DDPTimes:
    network = NETWORKS[name]
    plain = Learner(network, world.rank)
    steps = count_steps(world, plain, settings["round_s"])
    contestants = {"limit": partial(time_steps, world, plain, steps)}
    for backend, group in groups.items():
        learner = Learner(network, world.rank)
        learner.model = DistributedDataParallel(learner.model, process_group=group)
        learner.train(WARM_UP)
        learner.rest()
        contestants[backend] = partial(time_steps, world, learner, steps)
    seconds = best_of(settings["rounds"], contestants)
    _report(world, name, seconds)
    return {"network": name, "seconds": seconds}


def _report(world: World, what: str, seconds: dict[str, float]) -> None:
    figures: Sequence[str] = [f"{name} {1e3 * value:.3f} ms" for name, value in seconds.items()]
    say(world, f"  {what}: {', '.join(figures)}")
