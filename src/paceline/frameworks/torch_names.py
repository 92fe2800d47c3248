"""Optimizers and losses of torch by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from paceline.errors import ConfigError

Loss = Callable[[Any, Any], torch.Tensor]

LOSSES: dict[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "categorical_crossentropy": F.cross_entropy,
    "sparse_categorical_crossentropy": F.cross_entropy,
    "nll": F.nll_loss,
    "binary_crossentropy": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
    "mae": F.l1_loss,
    "huber": F.huber_loss,
}

_OPTIMIZERS: dict[str, Any] = {
    name.lower(): value
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value)
    and issubclass(value, torch.optim.Optimizer)
    and value is not torch.optim.Optimizer
}

_UNFIT = {
    "lbfgs": "it asks for several gradients per step",
    "sparseadam": "gradients are exchanged dense; use adam",
}

_NOT_SETTINGS = ("self", "params", "named_parameters")


def find_loss(loss: str | Loss) -> Loss:
    """A loss from its name, or the callable itself: `loss(outputs, targets)` is a mean."""
    if callable(loss):
        return loss
    if loss not in LOSSES:
        raise ConfigError(f"loss is '{loss}', expected one of: {', '.join(LOSSES)}{_near(loss)}")
    return LOSSES[loss]


def make_optimizer(
    spec: Mapping[str, Any] | Callable[..., torch.optim.Optimizer],
    parameters: Iterable[torch.nn.Parameter],
) -> torch.optim.Optimizer:
    """An optimizer from `{"name": "adam", "lr": ..., ...}`, or from a function of the parameters.

    The name is any class of torch.optim, in any case; the other keys are its own arguments.
    """
    if callable(spec):
        return spec(parameters)
    settings = {key: value for key, value in spec.items() if key != "name" and value is not None}
    name = str(spec["name"])
    kind = _OPTIMIZERS.get(name.lower())
    if kind is None:
        valid = ", ".join(sorted(_OPTIMIZERS))
        raise ConfigError(f"optimizer is '{name}', expected one of: {valid}{_near(name)}")
    if name.lower() in _UNFIT:
        raise ConfigError(f"optimizer {name} cannot be used here: {_UNFIT[name.lower()]}")
    known = [key for key in inspect.signature(kind).parameters if key not in _NOT_SETTINGS]
    unknown = [key for key in settings if key not in known]
    if unknown:
        raise ConfigError(
            f"optimizer {name} has no setting {', '.join(unknown)}; it takes: {', '.join(known)}"
        )
    try:
        return kind(parameters, **settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {name}: {error}") from error


def _near(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), [*LOSSES, *_OPTIMIZERS], n=1)
    return f". Did you mean '{near[0]}'?" if near else ""
