"""What the ranks of `bench uneven` do: train on sentences of uneven length, by each contestant.

A contestant's round begins with a fresh model. The first epoch is not timed: costs and speeds are
learned, DDP arranges its buckets. The second is. Then all have trained equally long, and the loss
over all sentences is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from time import perf_counter, sleep, thread_time
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from paceline.comm import World
from paceline.frameworks.threads import limit_threads
from paceline.observe import TimeSplit
from paceline.runtime.resources import cores_of_node
from paceline.tools.bench.harness import say
from paceline.tools.bench.ranks.peers import gloo_group
from paceline.tools.bench.ranks.timing import best_of, time_together
from paceline.tools.bench.ranks.uneven_models import (
    CORPORA,
    MODELS,
    Corpus,
    Model,
    Tokens,
    equal,
    lognormal,
    pad,
)
from paceline.tools.bench.ranks.uneven_peers import SAMPLERS, SamplingTask, find_missing
from paceline.tools.bench.uneven import SLOWDOWN, HostsSettings, PartSettings, UnevenSettings
from paceline.tools.bench.uneven_figures import Facts, ideal_seconds, mean_spread
from paceline.training.batches import shard
from paceline.training.deal import deal
from paceline.training.own_loop.keep_pace import keep_pace
from paceline.training.own_loop.pace import Pace

_EVALUATED_TOGETHER = 32
_COMPUTING = ("counts", "planned", "learned", "speeds", "dynamic", "longest")


class MicroBatch(NamedTuple):
    """What one forward and backward is for."""

    tokens: Tokens
    classes: torch.Tensor
    share: float = 1.0
    """Of the gradient of this rank's batch."""


Steps = Iterable[Iterable[MicroBatch]]
"""An epoch of one rank."""


@dataclass(frozen=True)
class Task:
    """What all contestants of a case do."""

    world: World
    corpus: Corpus
    model: Model
    batch: int
    """Sentences per rank and step."""
    bucketing: Mapping[str, float] = field(default_factory=dict)
    """Of contestants that shall not choose it themselves."""
    micro_batch: int = 1
    """Sentences that are dealt at a time."""
    one_by_one: bool = False
    """Whether those of a batch are computed one by one, as dealt ones are."""
    slowdown: Sequence[int] = ()
    """How often each rank does what others do once."""
    cores: int | None = None
    """Of all ranks; None: as many as needed."""
    token_s: float = 0.0
    """Seconds that a token takes at least, asleep."""
    warm_up: Corpus | None = None
    """What the first epoch consists of, if not of the same sentences."""

    @property
    def is_crowded(self) -> bool:
        return self.cores is not None and self.cores < self.world.size


class Meter:
    """Does the work of a rank in an epoch, and keeps account of it."""

    def __init__(self, task: Task) -> None:
        self._repeats = task.slowdown[task.world.rank] if task.slowdown else 1
        self._token_s = task.token_s
        # Where ranks wait for a core, only what they did with it is work.
        self._clock = thread_time if task.is_crowded else perf_counter
        self.busy_s = 0.0
        self.examples = self.padded = 0
        self._tokens: list[list[torch.Tensor]] = []

    def begin_step(self) -> None:
        self._tokens.append([])

    def work(self, module: nn.Module, batch: MicroBatch) -> None:
        """Forward and backward."""
        began = self._clock()
        for _ in range(self._repeats):
            loss = cross_entropy(module(batch.tokens), batch.classes)
            (loss * (batch.share / self._repeats)).backward()
        tokens = _count(batch.tokens)
        if self._token_s:
            sleep(max(0.0, began + self._token_s * int(tokens) - self._clock()))
        self.busy_s += self._clock() - began
        self.examples += len(batch.classes)
        self._tokens[-1].append(tokens)
        if isinstance(batch.tokens, torch.Tensor):
            self.padded += batch.tokens.numel()

    def tokens(self) -> list[int]:
        """Of each step."""
        return [int(sum(step)) for step in self._tokens]


def _count(tokens: Tokens) -> torch.Tensor:
    """Without padding."""
    if isinstance(tokens, torch.Tensor):
        return torch.count_nonzero(tokens)
    return torch.tensor(sum(map(len, tokens)))


def measure(world: World, settings: UnevenSettings) -> list[dict[str, Facts]]:
    """For each case, what its contestants reach."""
    limit_threads(1)
    missing = find_missing()
    for name, reason in missing.items():
        say(world, f"  {name} is left out: {reason}")
    peers = [name for name in SAMPLERS if name not in missing]
    cores = cores_of_node(world)
    found = []
    with gloo_group(world):
        for model, corpus, batch in settings["cases"]:
            say(world, f"  {model} {corpus} {world.size}x{batch}")
            task = Task(
                world,
                CORPORA[corpus](settings["sentences"]),
                MODELS[model],
                batch,
                settings["bucketing"],
                settings["micro_batch"],
                cores=cores,
            )
            found.append(contest(task, (*_COMPUTING, *peers), settings))
    return found


def measure_slow(world: World, settings: PartSettings) -> list[dict[str, Facts]]:
    """The last rank does everything twice."""
    limit_threads(1)
    slowdown = [*[1] * (world.size - 1), SLOWDOWN]
    corpus = lognormal(settings["sentences"])
    found = []
    for batch in settings["batches"]:
        say(world, f"  one of {world.size} ranks {SLOWDOWN}x slower, {batch} each")
        task = Task(world, corpus, MODELS["tree"], batch, slowdown=slowdown)
        found.append(contest(task, ("counts", "speeds", "dynamic"), settings))
    return found


def measure_equal(world: World, settings: PartSettings) -> list[dict[str, Facts]]:
    """All sentences have the same length, so dealing gains nothing."""
    limit_threads(1)
    corpus = equal(settings["sentences"])
    found = []
    for batch in settings["batches"]:
        say(world, f"  equal sentences, {world.size}x{batch}")
        task = Task(world, corpus, MODELS["tree"], batch, one_by_one=True)
        found.append(contest(task, ("counts", "dynamic"), settings))
    return found


def measure_hosts(world: World, settings: HostsSettings) -> list[dict[str, Facts]]:
    """Many more ranks than cores, whose examples take time and no core."""
    limit_threads(1)
    found = []
    for batch, steps in zip(settings["batches"], settings["steps"], strict=True):
        say(world, f"  asleep {world.size}x{batch}, {steps} steps")
        task = Task(
            world,
            lognormal(world.size * batch * steps),
            MODELS["length"],
            batch,
            token_s=settings["token_s"],
            warm_up=lognormal(2 * world.size * batch, seed=2),
        )
        found.append(contest(task, ("counts", "planned", "dynamic", "longest"), settings))
    return found


def contest(
    task: Task, names: Iterable[str], settings: UnevenSettings | PartSettings | HostsSettings
) -> dict[str, Facts]:
    """The best round of each contestant."""
    best: dict[str, Facts] = {}

    def run(name: str) -> float:
        facts = train(task, name)
        say(task.world, f"    {name}: {describe(facts)}")
        if name not in best or facts["seconds"] < best[name]["seconds"]:
            best[name] = facts
        return facts["seconds"]

    contestants = {name: partial(run, name) for name in names}
    best_of(settings["rounds"], contestants)
    return {name: best[name] for name in contestants}


def describe(facts: Facts) -> str:
    """
    >>> describe({"seconds": 2.0, "examples": 100, "steps": 10, "loss": 0.5, "of_ideal": 0.9})
    '50 examples/s, 0.900 of the ideal, loss 0.500'
    """
    words = [f"{facts['examples'] / facts['seconds']:.0f} examples/s"]
    if "of_ideal" in facts:
        words.append(f"{facts['of_ideal']:.3f} of the ideal")
    return ", ".join([*words, f"loss {facts['loss']:.3f}"])


def train(task: Task, name: str) -> Facts:
    """Train a new model for an epoch, then for another whose time is taken."""
    world = task.world
    model = build_model(task)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    epoch = CONTESTANTS[name](task)
    first = epoch
    if task.warm_up is not None:
        first = CONTESTANTS[name](replace(task, corpus=task.warm_up))
    meter = Meter(task)
    with _in_pace(task, name, model, optimizer) as (module, pace):
        _train_epoch(first(), module, optimizer, Meter(task))
        if pace is not None:
            pace.time()
        seconds = time_together(world, lambda: _train_epoch(epoch(), module, optimizer, meter))
        split = None if pace is None else pace.time()
    facts = _gather(task, meter, seconds, split)
    facts["loss"] = measure_loss(task, model)
    return facts


def build_model(task: Task) -> nn.Module:
    """The same for every contestant."""
    torch.manual_seed(1)
    return task.model.build(task.corpus.classes)


@contextmanager
def _in_pace(
    task: Task, name: str, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[nn.Module, Pace | None]]:
    """The module to call in a loop whose steps keep pace, inside the block; DDP has no Pace."""
    if name in SAMPLERS:
        yield DistributedDataParallel(model), None
        return
    with keep_pace(model, optimizer, world=task.world) as pace:
        yield model, pace


def _train_epoch(
    steps: Steps, module: nn.Module, optimizer: torch.optim.Optimizer, meter: Meter
) -> None:
    for step in steps:
        optimizer.zero_grad()
        meter.begin_step()
        for batch in step:
            meter.work(module, batch)
        optimizer.step()


def _gather(task: Task, meter: Meter, seconds: float, split: TimeSplit | None) -> Facts:
    """What all ranks did in these seconds; of DDP we do not see when it waits."""
    own = split or TimeSplit()
    mine = (meter.busy_s, own.compute, own.wait, meter.examples, meter.padded, meter.tokens())
    everyone = task.world.allgather_values(mine)
    busy, compute, wait, examples, padded, tokens = map(list, zip(*everyone, strict=True))
    facts: Facts = {"seconds": seconds, "examples": sum(examples), "steps": len(tokens[0])}
    if sum(padded):
        facts["padding"] = 1 - sum(map(sum, tokens)) / sum(padded)
    if split is None:
        return facts
    if task.token_s:
        compute = [task.token_s * sum(step) for step in tokens]
    elif task.is_crowded:
        compute = busy
    facts["of_ideal"] = ideal_seconds(compute, task.slowdown, task.cores) / seconds
    facts["working"] = sum(busy) / min(len(busy), task.cores or len(busy)) / seconds
    facts["waiting"] = sum(wait) / len(wait) / seconds
    facts["spread"] = mean_spread(tokens)
    return facts


def measure_loss(task: Task, model: nn.Module) -> float:
    """The mean over all sentences; each rank evaluates its part."""
    world, collate = task.world, task.model.collate
    by_length = sorted(task.corpus.sentences, key=lambda sentence: len(sentence[0]))
    mine = by_length[world.rank :: world.size]
    total = 0.0
    with torch.no_grad():
        for first in range(0, len(mine), _EVALUATED_TOGETHER):
            tokens, classes = collate(mine[first : first + _EVALUATED_TOGETHER])
            total += float(cross_entropy(model(tokens), classes, reduction="sum"))
    return sum(world.allgather_values(total)) / len(by_length)


Epoch = Callable[[], Steps]
"""Begins the next epoch."""


def _sharded(name: str, cost: str | None = None, speeds: str = "equal") -> Callable[[Task], Epoch]:
    """Batches of `paceline.shard`."""

    def make(task: Task) -> Epoch:
        batches = shard(
            task.corpus.sentences,
            task.batch,
            cost=cost,
            bucketing=task.bucketing.get(name),
            speeds=speeds,
            padded=(task.model.collate is pad) if cost else None,
            collate=task.model.collate,
            prefetch=0,  # all is in memory; peers load their batches between steps, too
            world=task.world,
        )
        split = _one_by_one if task.one_by_one else _whole
        return lambda: (split(*batch) for batch in batches)

    return make


def _whole(tokens: Tokens, classes: torch.Tensor) -> tuple[MicroBatch]:
    return (MicroBatch(tokens, classes),)


def _one_by_one(tokens: Tokens, classes: torch.Tensor) -> Iterator[MicroBatch]:
    for own, label in zip(tokens, classes, strict=True):
        yield MicroBatch([own], label[None], 1 / len(classes))


def _dealt(cost: str | None = None) -> Callable[[Task], Epoch]:
    """Sentences of `paceline.deal`, one at a time or a few."""

    def make(task: Task) -> Epoch:
        sentences, collate, world = task.corpus.sentences, task.model.collate, task.world
        together, few = task.batch * world.size, task.micro_batch
        if few > 1:
            steps = deal(sentences, together, few, cost=cost, collate=collate, world=world)
            return lambda: ((MicroBatch(*batch) for batch in step) for step in steps)
        single = deal(sentences, together, cost=cost, world=world)
        return lambda: ((MicroBatch(*collate([one])) for one in step) for step in single)

    return make


def _sampled(name: str) -> Callable[[Task], Epoch]:
    """Batches of a peer's sampler."""

    def make(task: Task) -> Epoch:
        world, sentences = task.world, task.corpus.sentences
        batches = SAMPLERS[name](
            SamplingTask(task.corpus.lengths, task.batch, world.rank, world.size)
        )
        numbers = count()

        def steps() -> Iterator[tuple[MicroBatch]]:
            for batch in batches(next(numbers)):
                yield _whole(*task.model.collate([sentences[place] for place in batch]))

        return steps

    return make


CONTESTANTS: Mapping[str, Callable[[Task], Epoch]] = {
    "counts": _sharded("counts"),
    "planned": _sharded("planned", cost="length"),
    "learned": _sharded("learned", cost="learned"),
    "speeds": _sharded("speeds", cost="length", speeds="measured"),
    "dynamic": _dealt(),
    "longest": _dealt(cost="length"),
    **{name: _sampled(name) for name in SAMPLERS},
}
