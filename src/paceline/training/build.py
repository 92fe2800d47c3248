"""From the settings of a run to this rank's replica."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from paceline.comm import World
from paceline.config.optimizer import OptimizerConfig
from paceline.config.run import RunConfig
from paceline.core.regular_files import is_regular
from paceline.core.user_code import load_function
from paceline.errors import ConfigError
from paceline.frameworks import Replica
from paceline.frameworks.random_state import seed_generators
from paceline.frameworks.registry import FILES, is_model, load_file, loaded_frameworks, make_replica
from paceline.frameworks.replica import WithSeeds
from paceline.frameworks.threads import limit_threads, prepare_backends, set_threads
from paceline.models import MODELS
from paceline.runtime.resources import fair_threads


def build_replica(config: RunConfig, world: World) -> Replica:
    """The same model everywhere; after that each rank has random numbers of its own.

    Rank 0 goes on with the numbers that building left, so that one rank alone is plain training
    with that seed.
    """
    model = config.model
    prepare_backends(config.threads or fair_threads(world))
    if isinstance(model, str):
        model = _find_model(model)
    if is_model(model):
        seed_generators(config.seed)
    else:
        model = call_seeded(model, config.seed)
    if config.threads is not None:
        set_threads(config.threads)
    else:
        limit_threads(fair_threads(world))
    _check_unread(model, config)
    optimizer = config.optimizer
    named: object = optimizer.settings() if isinstance(optimizer, OptimizerConfig) else optimizer
    options = {name: getattr(config, name) for name in _OPTIONS}
    given = {key: value for key, value in options.items() if value != _usual(key)}
    loss, named = _leave_compiled(model, config, config.loss, named)
    replica = make_replica(model, loss, named, **given)
    if world.rank:
        key = config.seed + 1_000_003 * world.rank
        seed_generators(key)
        if isinstance(replica, WithSeeds):
            replica.reseed(key)
    return replica


def _find_model(name: str) -> object:
    """A function that makes the model which is named, or which lies in a file."""
    path = Path(name)
    if path.suffix not in FILES:
        return load_function(MODELS.get(name, name))
    if not is_regular(path):
        raise ConfigError(f"there is no file {name[:500]}; check the path")
    return partial(load_file, path)


def call_seeded(function: object, seed: int) -> Any:
    """What the function makes, from the same random numbers on every rank."""
    if not callable(function):
        raise ConfigError(f"model is {function!r}, expected a model or a function that makes it")
    seed_generators(seed)
    loaded = loaded_frameworks()
    model = function()
    if loaded_frameworks() == loaded:
        return model
    seed_generators(seed)  # building has imported a framework that had no seed
    return function()


_OPTIONS = ("weights", "compile", "precision")
"""Settings that only some frameworks have."""


def _usual(name: str) -> object:
    return RunConfig.model_fields[name].default


def _leave_compiled(
    model: object, config: RunConfig, loss: object, optimizer: object
) -> tuple[object, object]:
    """None for what a compiled Keras model has of its own, where the settings say nothing else."""
    if isinstance(loss, dict | list) and not hasattr(model, "stateless_call"):
        raise ConfigError("loss has several parts, which is for Keras models of several outputs")
    if getattr(model, "compiled", False) is not True:
        return loss, optimizer
    said, usual = config.describe(), RunConfig().describe()
    return (
        None if said["loss"] == usual["loss"] else loss,
        None if said["optimizer"] == usual["optimizer"] else optimizer,
    )


def _check_unread(model: object, config: RunConfig) -> None:
    """Refuse settings of what the model has of its own."""
    everything = ("optimizer", "loss") if isinstance(model, Replica) else ()
    brought = getattr(model, "brings", everything)
    said, usual = config.describe(), RunConfig().describe()  # a run's own config.yaml says all
    unread = [name for name in brought if said[name] != usual[name]]
    if unread:
        raise ConfigError(
            f"the model is a {type(model).__name__}, which has its own {' and '.join(unread)}"
        )
