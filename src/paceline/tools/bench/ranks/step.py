"""What the ranks of `bench step` do: train copies of one network in several ways, in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from paceline.cluster.memory import read_memory
from paceline.comm import World, wait_until
from paceline.frameworks.threads import limit_threads
from paceline.models.alexnet import alexnet
from paceline.models.inception import inception
from paceline.models.lstm import SentenceLSTM
from paceline.models.mlp import mlp
from paceline.models.mnist import MNISTNetwork
from paceline.rules import CentreRule, Gossip, Rule, WeightRule, make_rule
from paceline.runtime.resources import fair_threads
from paceline.tools.bench.harness import say
from paceline.tools.bench.ranks.peers import gloo_group
from paceline.tools.bench.ranks.timing import best_of, time_together
from paceline.tools.bench.step import StepSettings, StepTimes
from paceline.training.own_loop.keep_pace import keep_pace

_TAG = 17
_LOOK_EVERY_S = 0.002
WARM_UP = 3
"""Steps before anything is timed: momentum is allocated in the first, DDP arranges its buckets
after the first, and the allocator knows all sizes by the third."""
_FEWEST_STEPS = 3
"""In a round: ranks get out of step by chance, and one step alone would take all of the delay."""
_LONGEST_PERIOD = 50
"""Steps that a round may be made longer by, so that it has an exchange of the rule."""
_SHARE_OF_MEMORY = 0.8
_PEER_VECTORS, _RULE_VECTORS = 6, 5
"""Vectors as long as the parameters that are held on each rank: of plain training and DDP
(parameters, momentum; buckets; gradients of the one that runs), and of a rule (parameters, momentum
and up to three of its own)."""


@dataclass(frozen=True)
class Network:
    """What is trained: how to build it, and the batch that each rank gives it."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], torch.Tensor]
    classes: int


NETWORKS = {
    "linear": Network(partial(nn.Linear, 500, 500), partial(torch.rand, 1, 500), 500),
    "cnn": Network(MNISTNetwork, partial(torch.rand, 64, 1, 28, 28), 10),
    "mlp": Network(mlp, partial(torch.rand, 64, 1, 28, 28), 10),
    "lstm": Network(SentenceLSTM, partial(torch.randint, 1, 10_000, (32, 30)), 2),
    "inception": Network(inception, partial(torch.rand, 64, 3, 32, 32), 17),
    "alexnet": Network(alexnet, partial(torch.rand, 16, 3, 224, 224), 1000),
}
"""Seed 004's model, the others by their names in `paceline.models`."""


class Learner:
    """A copy of the network with an optimizer, trained on one batch by a user's plain loop."""

    def __init__(self, network: Network, rank: int) -> None:
        torch.manual_seed(1)
        self.model: nn.Module = network.build()
        # So slow that one batch does not become so well known that its gradients are denormal
        # numbers, with which processors compute many times slower.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-5, momentum=0.9)
        torch.manual_seed(2 + rank)
        self._inputs = network.inputs()
        self._targets = torch.randint(network.classes, (len(self._inputs),))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=True)
            cross_entropy(self.model(self._inputs), self._targets).backward()
            self.optimizer.step()

    def rest(self) -> None:
        """Others run now: hold no gradients, which the next step makes anew anyway."""
        self.optimizer.zero_grad(set_to_none=True)


def measure(world: World, settings: StepSettings) -> list[StepTimes]:
    """For each group of rules, seconds per step of the peers and rules, and notes on each rule."""
    limit_threads(fair_threads(world))  # as `keep_pace` does: all contestants alike
    network = NETWORKS[settings["network"]]
    rules = [make_rule(name) for name in settings["rules"]]
    with gloo_group(world):
        plain, ddp = Learner(network, world.rank), Learner(network, world.rank)
        ddp.model = DistributedDataParallel(ddp.model)
        steps = count_steps(world, plain, settings["round_s"])
        ddp.train(WARM_UP)
        ddp.rest()
        peers = {
            "one": partial(time_alone, world, plain, steps),
            "limit": partial(time_steps, world, plain, steps),
            "ddp-gloo": partial(time_steps, world, ddp, steps),
        }
        copies_bytes = vector_bytes(plain.model) * world.size
        groups = group_rules(rules, copies_bytes, world.bcast_value(read_memory()[1]))
        return [
            _measure_group(world, network, peers, group, steps, settings["rounds"])
            for group in groups
        ]


def _measure_group(
    world: World,
    network: Network,
    peers: Mapping[str, Callable[[], float]],
    rules: Sequence[Rule],
    steps: int,
    rounds: int,
) -> StepTimes:
    """The peers and some rules, in the same rounds; entering and leaving blocks takes no time."""
    plans = {rule.name: plan_round(rule, steps) for rule in rules}
    contestants: dict[str, Callable[[], float]] = dict(peers)
    with ExitStack() as blocks:
        for rule in rules:
            learner = Learner(network, world.rank)
            pace = keep_pace(learner.model, learner.optimizer, rule, world=world)
            blocks.enter_context(pace)
            learner.train(WARM_UP)
            learner.rest()
            contestants[rule.name] = partial(time_steps, world, learner, plans[rule.name].steps)
        say(world, f"  rounds: {rounds}, of {', '.join(contestants)}")
        found = best_of(rounds, contestants)
    say(world, f"  {', '.join(f'{name} {1e3 * value:.2f} ms' for name, value in found.items())}")
    return {"seconds": found, "notes": {name: plan.notes() for name, plan in plans.items()}}


def time_steps(world: World, learner: Learner, steps: int) -> float:
    """Seconds per step while all ranks train."""
    seconds = time_together(world, partial(learner.train, steps))
    learner.rest()
    return seconds / steps


def time_alone(world: World, learner: Learner, steps: int) -> float:
    """Seconds per step while rank 0 trains and the others sleep: one that waits in a barrier would
    keep its core busy."""
    seconds = np.zeros(1)
    world.barrier()
    if world.rank:
        wait_until(world.irecv(seconds, 0, _TAG).done, _LOOK_EVERY_S)
        return float(seconds[0])
    began = perf_counter()
    learner.train(steps)
    seconds[0] = (perf_counter() - began) / steps
    learner.rest()
    for other in range(1, world.size):
        wait_until(world.isend(seconds, other, _TAG).done)
    return float(seconds[0])


def count_steps(world: World, learner: Learner, round_s: float) -> int:
    """Steps of a round that takes about so long without communication, the same on all ranks."""
    learner.train(WARM_UP)
    return max(_FEWEST_STEPS, round(round_s / time_steps(world, learner, WARM_UP)))


@dataclass(frozen=True)
class RoundPlan:
    """A rule's round: how many steps, and how many between two exchanges (None: an epoch)."""

    steps: int
    period: int | None

    def notes(self) -> dict[str, object]:
        """What a reader must know: an exchange that is too rare for a round is not timed."""
        timed = self.period is not None and self.steps % self.period == 0
        every = "epoch" if self.period is None else str(self.period)
        return {"steps": self.steps, "exchanges every": every if timed else f"{every}, not timed"}


def plan_round(rule: Rule, steps: int) -> RoundPlan:
    """Whole periods of the rule, if not much longer, so that a round has its share of exchanges.

    >>> plan_round(make_rule("easgd"), 16), plan_round(make_rule("diloco"), 16)
    (RoundPlan(steps=20, period=10), RoundPlan(steps=16, period=500))
    """
    period = _period(rule)
    if period is None or period > max(steps, _LONGEST_PERIOD):
        return RoundPlan(steps, period)
    return RoundPlan(-(-steps // period) * period, period)


def _period(rule: Rule) -> int | None:
    """Steps between two exchanges; on average, if they are random."""
    if isinstance(rule, Gossip):
        return round(1 / rule.probability)
    if isinstance(rule, CentreRule):
        return rule.report_every
    return rule.period.steps if isinstance(rule, WeightRule) else 1


def vector_bytes(model: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def group_rules(rules: Sequence[Rule], copies_bytes: int, free_bytes: int) -> list[list[Rule]]:
    """Rules that are measured in the same rounds: as many as fit into memory beside the peers.

    `copies_bytes` is what one copy of the parameters on each rank takes.
    """
    free = _SHARE_OF_MEMORY * free_bytes - _PEER_VECTORS * copies_bytes
    together = max(1, int(free / (_RULE_VECTORS * copies_bytes)))
    return [list(rules[at : at + together]) for at in range(0, len(rules), together)]
