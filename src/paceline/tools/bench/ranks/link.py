"""What the ranks of `bench link` do: train one network on MNIST by each rule, and by DDP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from paceline.comm import World
from paceline.data import ArraySource, Shard, Source, evaluation_batches
from paceline.data.builtin import digits, mnist
from paceline.errors import WorldError
from paceline.models.mlp import mlp
from paceline.rules import BSP, EASGD, Average, DiLoCo, Downpour, Rule
from paceline.tools.bench.harness import say
from paceline.tools.bench.hosts import ADDRESSES, INTERFACE
from paceline.tools.bench.link import PEER, LinkSettings
from paceline.tools.bench.ranks.peers import gloo_group
from paceline.tools.bench.ranks.timing import best_of, time_together
from paceline.training.batches import shard
from paceline.training.own_loop.keep_pace import keep_pace

BATCH = 64
LOOK_EVERY = 32
"""Steps between two looks at the accuracy: a multiple of every rule's period, so that replicas have
just exchanged."""
_VALIDATION_BATCH = 500
_WARM_UP = 18
"""Steps that do not count: in the first two DDP arranges its buckets, and after 16 the rules that
overlap have begun to."""

_LOOKS, _LOOK_S, _QUIET_BYTES = 100, 0.2, 4096  # a network that is looked at is not quite idle

Batch = tuple[torch.Tensor, torch.Tensor]

_sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


@dataclass(frozen=True)
class RuleContestant:
    """A rule, or none for DDP, and the optimizer of its workers."""

    rule: Rule | None
    make_optimizer: Callable[..., torch.optim.Optimizer] = _sgd
    exchange: Mapping[str, object] = field(default_factory=dict)


CONTESTANTS = {
    PEER: RuleContestant(None),
    "bsp float32": RuleContestant(BSP(), exchange={"overlap": True}),  # as DDP does it
    "bsp bfloat16": RuleContestant(BSP(), exchange={"wire": "bfloat16", "overlap": True}),
    "bsp float16": RuleContestant(BSP(), exchange={"wire": "float16", "overlap": True}),
    "bsp int8": RuleContestant(BSP(), exchange={"wire": "int8", "overlap": True}),
    "bsp powersgd": RuleContestant(BSP(), exchange={"wire": "powersgd"}),
    "average every 16": RuleContestant(Average(every=16)),
    "diloco every 16": RuleContestant(
        DiLoCo(every=16), partial(torch.optim.AdamW, lr=3e-4, fused=True)
    ),
    "easgd every 16 overlap": RuleContestant(EASGD(every=16), exchange={"overlap": True}),
    # The pushes of all workers add up, and asynchrony acts like momentum.
    "downpour every 16 overlap": RuleContestant(
        Downpour(push_every=16, pull_every=16),
        partial(torch.optim.SGD, lr=0.1),
        {"overlap": True},
    ),
}


def measure(world: World, settings: LinkSettings) -> dict[str, dict[str, float]]:
    """For each contestant: samples per second, bytes per sample, and the way to the target."""
    build = partial(mlp, hidden=settings["hidden"])
    with gloo_group(world, ADDRESSES[0], INTERFACE):
        found = _measure_speed(world, build, settings)
        train, validation = load_data(settings["data_dir"])
        say(world, f"  training on {train.name}, {len(train)} images")
        for name, contestant in CONTESTANTS.items():
            goal = Goal(world, validation, settings["target"], settings["limit_s"])
            found[name] |= train_to(goal, contestant, _seeded(build), train)
            seconds, accuracy = found[name]["seconds"], found[name]["accuracy"]
            say(world, f"  {name}: {100 * accuracy:.2f} % in {seconds:.1f} s")
    return found


def load_data(data_dir: str | None) -> tuple[ArraySource, ArraySource]:
    """Training and validation images: the full MNIST of that place, or the digits we have."""
    parts = ("train", "validation")
    first, second = (mnist.load(p, data_dir) if data_dir else digits.load(p) for p in parts)
    return first, second


def _measure_speed(
    world: World, build: Callable[[], nn.Module], settings: LinkSettings
) -> dict[str, dict[str, float]]:
    steps = settings["steps"]
    batch = torch.rand(BATCH, 784), torch.randint(10, (BATCH,))

    def contest(name: str) -> float:
        seconds = time_steps(world, CONTESTANTS[name], _seeded(build), batch, steps)
        say(world, f"  {name}: {steps * BATCH * world.size / seconds:.0f} samples/s")
        return seconds

    best = best_of(settings["rounds"], {name: partial(contest, name) for name in CONTESTANTS})
    samples = steps * BATCH
    return {
        name: {
            "samples_per_s": samples * world.size / seconds,
            "bytes_per_sample": count_bytes(world, CONTESTANTS[name], _seeded(build), batch, steps)
            / samples,
        }
        for name, seconds in best.items()
    }


def time_steps(
    world: World, contestant: RuleContestant, model: nn.Module, batch: Batch, steps: int
) -> float:
    """Seconds of so many steps, amidst others."""
    optimizer = contestant.make_optimizer(model.parameters())
    with in_pace(world, contestant, model, optimizer) as module:
        _take_steps(_WARM_UP, module, optimizer, batch)
        return time_together(world, lambda: _take_steps(steps, module, optimizer, batch))


def count_bytes(
    world: World, contestant: RuleContestant, model: nn.Module, batch: Batch, steps: int
) -> int:
    """The bytes that this host sends for so many steps, until the last of them has left."""
    optimizer = contestant.make_optimizer(model.parameters())
    with in_pace(world, contestant, model, optimizer) as module:
        _take_steps(2, module, optimizer, batch)
        before = _bytes_when_quiet(world)
        _take_steps(steps, module, optimizer, batch)
        return _bytes_when_quiet(world) - before


def _take_steps(
    times: int, module: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch
) -> None:
    for _ in range(times):
        take_step(module, optimizer, *batch)


def _bytes_when_quiet(world: World) -> int:
    """The bytes sent so far, once neither host has sent much for a while."""
    world.barrier()
    before = -_QUIET_BYTES
    for _ in range(_LOOKS):
        now = bytes_sent()
        if max(world.allgather_values(now - before)) < _QUIET_BYTES:
            break
        before = now
        sleep(_LOOK_S)
    return bytes_sent()


@contextmanager
def in_pace(
    world: World,
    contestant: RuleContestant,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> Iterator[nn.Module]:
    """The module to call in a loop whose steps keep pace, inside the block."""
    if contestant.rule is None:
        yield DistributedDataParallel(model)
        return
    with keep_pace(model, optimizer, contestant.rule, exchange=contestant.exchange, world=world):
        yield model


def take_step(
    module: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor
) -> None:
    optimizer.zero_grad()
    cross_entropy(module(inputs), targets).backward()
    optimizer.step()


class Goal:
    """An accuracy to be reached, and a clock that runs while a model is trained for it."""

    def __init__(self, world: World, validation: Source, target: float, limit_s: float) -> None:
        self.world = world
        self._validation, self._target, self._limit_s = validation, target, limit_s
        self.seconds = self.accuracy = 0.0
        self._began = 0.0

    def start(self) -> None:
        """Start the clock when all ranks are here."""
        self.world.barrier()
        self._began = perf_counter()

    def stop(self) -> None:
        """Stop the clock; the slowest rank counts."""
        self.seconds += max(self.world.allgather_values(perf_counter() - self._began))

    def look(self, model: nn.Module) -> None:
        """Measure the accuracy, each rank its share of the images."""
        self.accuracy = measure_accuracy(self.world, model, self._validation)

    @property
    def is_decided(self) -> bool:
        """Whether it is reached or given up, the same on every rank."""
        return self.accuracy >= self._target or self.seconds >= self._limit_s


def train_to(
    goal: Goal, contestant: RuleContestant, model: nn.Module, train: Source
) -> dict[str, float]:
    """Seconds of training until what a user gets at the end reaches the goal, and its accuracy.

    The replicas decide when to stop, and then the result is evaluated: if it is a centre that lags
    behind them, training continues from it, with new momenta, since those of the ranks differ.
    """
    batches = shard(train, BATCH, to=torch.from_numpy, world=goal.world)
    while not goal.is_decided:
        optimizer = contestant.make_optimizer(model.parameters())
        goal.start()
        with in_pace(goal.world, contestant, model, optimizer) as module:
            _train_until_decided(goal, model, module, optimizer, batches)
        goal.stop()
        goal.look(model)
    return {"seconds": goal.seconds, "accuracy": goal.accuracy}


def _train_until_decided(
    goal: Goal,
    model: nn.Module,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Any,
) -> None:
    # An epoch ends with its last look, or looks would fall out of step with exchanges.
    steps = len(batches) // LOOK_EVERY * LOOK_EVERY
    while not goal.is_decided:
        for step, (inputs, targets) in enumerate(islice(batches, steps), 1):
            take_step(module, optimizer, inputs, targets)
            if step % LOOK_EVERY == 0:
                goal.stop()
                goal.look(model)
                goal.start()
                if goal.is_decided:
                    return


def measure_accuracy(world: World, model: nn.Module, source: Source) -> float:
    """The accuracy of the replicas, each on its share of the samples."""
    mine = Shard(world.rank, world.size)
    correct = samples = 0
    for batch in evaluation_batches(source, shard=mine, batch_size=_VALIDATION_BATCH):
        with torch.no_grad():
            guesses = model(torch.from_numpy(batch.inputs)).argmax(dim=1)
        correct += int((guesses == torch.from_numpy(batch.targets)).sum())
        samples += batch.samples
    found = world.allgather_values((correct, samples))
    return sum(right for right, _ in found) / sum(seen for _, seen in found)


def bytes_sent(interface: str = INTERFACE) -> int:
    """Since the host was made, by the network of this process; /sys shows the machine's own."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == interface:
            return int(counts.split()[8])
    raise WorldError(f"this host has no interface {interface}")


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """The same network for every contestant."""
    torch.manual_seed(1)
    return build()
