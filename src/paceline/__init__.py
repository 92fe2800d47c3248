"""Train one neural network on many processes that keep pace by a rule.

Importing this starts no MPI and imports no framework; each name below is loaded at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.comm import World
    from paceline.errors import PacelineError
    from paceline.frameworks.jax.model import JaxModel
    from paceline.rules import BSP, EASGD, Average, DiLoCo, Downpour, Gossip
    from paceline.runtime.world import init
    from paceline.training.batches import shard
    from paceline.training.callbacks import Callback
    from paceline.training.deal import deal
    from paceline.training.own_loop.keep_pace import keep_pace
    from paceline.training.own_loop.together import mean, print
    from paceline.training.tensorboard import TensorBoard
    from paceline.training.trainer import Result, Trainer

__version__ = "0.1.0"

_HOMES = {
    "Average": "paceline.rules",
    "BSP": "paceline.rules",
    "Callback": "paceline.training.callbacks",
    "DiLoCo": "paceline.rules",
    "Downpour": "paceline.rules",
    "EASGD": "paceline.rules",
    "Gossip": "paceline.rules",
    "JaxModel": "paceline.frameworks.jax.model",
    "PacelineError": "paceline.errors",
    "Result": "paceline.training.trainer",
    "TensorBoard": "paceline.training.tensorboard",
    "Trainer": "paceline.training.trainer",
    "World": "paceline.comm",
    "deal": "paceline.training.deal",
    "init": "paceline.runtime.world",
    "keep_pace": "paceline.training.own_loop.keep_pace",
    "mean": "paceline.training.own_loop.together",
    "print": "paceline.training.own_loop.together",
    "shard": "paceline.training.batches",
}

__all__ = [
    "BSP",
    "EASGD",
    "Average",
    "Callback",
    "DiLoCo",
    "Downpour",
    "Gossip",
    "JaxModel",
    "PacelineError",
    "Result",
    "TensorBoard",
    "Trainer",
    "World",
    "deal",
    "init",
    "keep_pace",
    "mean",
    "print",
    "shard",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
