"""Optimizers of optax by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import optax

from paceline.errors import ConfigError

RATE = "learning_rate"

_OPTIMIZERS: dict[str, Callable[..., Any]] = {
    name: function
    for name, function in vars(optax).items()
    if inspect.isfunction(function)
    and name != "lbfgs"  # it asks for several gradients per step
    and RATE in inspect.signature(function).parameters
}


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
    own = {key: value for key, value in settings.items() if key != "name" and value is not None}
    name = str(settings["name"]).lower()
    kind = _OPTIMIZERS.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, _OPTIMIZERS, n=1)
        hint = f". Did you mean '{near[0]}'?" if near else ""
        raise ConfigError(
            f"optimizer is '{name}', expected one of optax: {', '.join(sorted(_OPTIMIZERS))}{hint}"
        )
    if "lr" not in own:
        raise ConfigError(f"optax.{name} has no learning rate of its own; set optimizer.lr")
    rate = float(own.pop("lr"))
    known = [key for key in inspect.signature(kind).parameters if key != RATE]
    unknown = [key for key in own if key not in known]
    if unknown:
        raise ConfigError(
            f"optax.{name} has no setting {', '.join(unknown)}; it takes: lr, {', '.join(known)}"
        )
    try:
        made = kind(rate, **own)
    except Exception as error:  # each checks its settings in its own way
        raise ConfigError(f"optimizer {name}: {error}") from error
    words = ", ".join(f"{key}={value}" for key, value in {"lr": rate, **own}.items())
    return Optimizer(made, f"optax.{name}({words})", rate)
