"""Optimizers of optax by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import optax

from paceline.errors import ConfigError
from paceline.frameworks.optimizers_by_name import NamedOptimizers

RATE = "learning_rate"

_OPTIMIZERS = NamedOptimizers(
    {
        name: function
        for name, function in vars(optax).items()
        if inspect.isfunction(function) and RATE in inspect.signature(function).parameters
    },
    rate=RATE,
    unfit={"lbfgs": "it asks for several gradients per step"},
)


@dataclass(frozen=True)
class Optimizer:
    """A transformation of optax, what to call it, and its learning rate if that is known."""

    transformation: Any
    label: str
    rate: float | None


def make_optimizer(given: Any, settings: Any, params: Any) -> Optimizer:
    """The optimizer that the model brings, or one from the settings `{"name": "adam", "lr": ...}`,
    or from a function of the parameters."""
    if given is None and callable(settings):
        given = settings(params)
    if given is None:
        return _find(settings)
    if not hasattr(given, "init") or not hasattr(given, "update"):
        raise ConfigError(
            f"the optimizer is a {type(given).__name__}, expected one of optax: optax.adam(1e-3)"
        )
    return Optimizer(given, "optax", None)


def _find(settings: Mapping[str, Any]) -> Optimizer:
    found = _OPTIMIZERS.find(settings)
    name = found.name.lower()
    if "lr" not in found.settings:
        raise ConfigError(f"optax.{name} has no learning rate of its own; set optimizer.lr")
    rate = float(found.settings["lr"])
    words = ", ".join(f"{key}={value}" for key, value in ({"lr": rate} | found.settings).items())
    return Optimizer(found.make(), f"optax.{name}({words})", rate)
