"""From the settings of a run to this rank's replica."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from paceline.comm import World
from paceline.errors import ConfigError
from paceline.frameworks import (
    FILES,
    Replica,
    is_model,
    limit_threads,
    load_file,
    loaded_frameworks,
    make_replica,
    seed_generators,
    set_threads,
)
from paceline.functions import load_function
from paceline.launch.threads import fair_threads
from paceline.models import MODELS
from paceline.training.config import OptimizerConfig, RunConfig


def build_replica(config: RunConfig, world: World) -> Replica:
    """The same model everywhere; after that each rank has random numbers of its own.

    Rank 0 goes on with the numbers that building left, so that one rank alone is plain training
    with that seed.
    """
    model = config.model
    if isinstance(model, str):
        model = _find_model(model)
    seed_generators(config.seed)
    if not is_model(model):
        model = _call(model, config.seed)
    if config.threads is not None:
        set_threads(config.threads)
    else:
        limit_threads(fair_threads(world))
    if isinstance(model, Replica):
        _check_unread(model, config)
    optimizer = config.optimizer
    named = optimizer.settings() if isinstance(optimizer, OptimizerConfig) else optimizer
    replica = make_replica(model, config.loss, named)
    if world.rank:
        seed_generators(config.seed + 1_000_003 * world.rank)
    return replica


def _find_model(name: str) -> Any:
    """A function that makes the model which is named, or which lies in a file."""
    path = Path(name)
    if path.suffix not in FILES:
        return load_function(MODELS.get(name, name))
    if not path.is_file():
        raise ConfigError(f"there is no file {name} (looked for {path.absolute()})")
    return partial(load_file, path)


def _call(function: Any, seed: int) -> Any:
    if not callable(function):
        raise ConfigError(f"model is {function!r}, expected a model or a function that makes it")
    loaded = loaded_frameworks()
    model = function()
    if loaded_frameworks() == loaded:
        return model
    seed_generators(seed)  # building has imported a framework that had no seed
    return function()


def _check_unread(replica: Replica, config: RunConfig) -> None:
    said, usual = config.describe(), RunConfig().describe()  # a run's own config.yaml says all
    unread = [name for name in ("optimizer", "loss") if said[name] != usual[name]]
    if unread:
        raise ConfigError(
            f"the model is a {type(replica).__name__}, which has its own {' and '.join(unread)}"
        )
