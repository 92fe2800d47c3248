"""What the ranks of `bench memory` do: train a few steps, then look at their memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

from paceline.comm import World
from paceline.core.user_code import load_function
from paceline.tools.bench.memory import MemorySettings
from paceline.tools.bench.ranks.mappings import identify, read_mappings, resident_bytes
from paceline.tools.bench.ranks.peers import gloo_group
from paceline.training.own_loop.keep_pace import keep_pace


def measure(world: World, settings: MemorySettings) -> dict[str, float]:
    """Bytes of the node: what training needs, and what parameters and optimizer state take."""
    torch.manual_seed(1)
    images = torch.randn(settings["images"])
    labels = torch.randint(settings["classes"], (len(images),))
    build = load_function(settings["build"])
    _train_alone(build(), images, labels)
    before = _resident(world)
    model = build()
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
    with _CONTESTANTS[settings["contestant"]](world, model, optimizer) as trained:
        for _ in range(settings["steps"] - 1):
            _step(trained, optimizer, images, labels)
        _find_gradients(trained, images, labels)
        full = _resident(world)
        optimizer.step()
        return {
            "before_step": full - before,
            "after_step": _resident(world) - before,
            "held": _held(world, model),
        }


def _train_alone(model: Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Take a first step, so that the 90 MB that torch loads for it are there when we measure."""
    _step(model, SGD(model.parameters(), lr=0.01, momentum=0.9), images, labels)


def _step(model: Module, optimizer: Optimizer, images: torch.Tensor, labels: torch.Tensor) -> None:
    _find_gradients(model, images, labels)
    optimizer.step()


def _find_gradients(model: Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()


@contextmanager
def _ours(world: World, model: Module, optimizer: Optimizer) -> Iterator[Module]:
    with keep_pace(model, optimizer, "bsp", world=world):
        yield model


@contextmanager
def _ddp(world: World, model: Module, optimizer: Optimizer) -> Iterator[Module]:
    with gloo_group(world):
        yield DistributedDataParallel(model)


_CONTESTANTS: dict[str, Callable[..., AbstractContextManager[Module]]] = {
    "ours": _ours,
    "ddp-gloo": _ddp,
}


def _resident(world: World) -> int:
    """The sum over the ranks, measured while all of them hold their memory."""
    world.barrier()
    total = sum(world.allgather_values(resident_bytes()))
    world.barrier()
    return total


def _held(world: World, model: Module) -> int:
    """Bytes of all ranks' parameters and optimizer states; memory that ranks share counts once."""
    mappings = read_mappings()
    mine = {
        identify(tensor.data_ptr(), mappings, f"rank {world.rank}"): tensor.nbytes
        for tensor in [*model.parameters(), *_states()]
    }
    everyone: dict[str, int] = {}
    for part in world.allgather_values(mine):
        everyone |= part
    return sum(everyone.values())


def _states() -> Iterable[torch.Tensor]:
    """The state of every optimizer that lives here: ours has one per chunk of its slice."""
    # By type(): isinstance() asks objects that answer with a warning.
    optimizers = [thing for thing in gc.get_objects() if issubclass(type(thing), Optimizer)]
    for optimizer in optimizers:
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))
