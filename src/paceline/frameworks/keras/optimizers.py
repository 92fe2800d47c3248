"""Keras' optimizers: made by name, described, and saved in checkpoints."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from paceline.core.vectors import checksum
from paceline.errors import CheckpointError, ConfigError, ReplicaError
from paceline.frameworks.keras.vectors import read, write
from paceline.frameworks.optimizers_by_name import NamedOptimizers

_NO_CHOICE = ("optimizer", "lossscaleoptimizer")
_OPTIMIZERS = NamedOptimizers(
    {
        name.lower(): value
        for name, value in vars(keras.optimizers).items()
        if inspect.isclass(value)
        and issubclass(value, keras.optimizers.Optimizer)
        and name.lower() not in _NO_CHOICE
    },
    not_settings=("name", "kwargs"),
    rate="learning_rate",
)


def make_optimizer(spec: Mapping[str, Any] | Callable[..., Any], variables: Sequence[Any]) -> Any:
    """An optimizer from `{"name": "adam", "lr": ..., ...}`, or from a function of the variables.

    The name is any class of keras.optimizers, in any case; the other keys are its own arguments,
    and `lr` is `learning_rate`.
    """
    optimizer = spec(variables) if callable(spec) else _OPTIMIZERS.find(spec).make()
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigError(
            f"the optimizer is a {type(optimizer).__name__}, and a Keras model needs one of "
            "keras.optimizers"
        )
    return optimizer


def check_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Build it for these variables; refuse settings that would not take effect."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ReplicaError(
            "the optimizer scales the loss (mixed_float16), which is not supported; use the policy "
            "mixed_bfloat16, which needs no scaling"
        )
    if getattr(optimizer, "use_ema", False):
        raise ReplicaError(
            "the optimizer has use_ema=True, and a mean over steps is not kept here; omit it"
        )
    if not optimizer.built:
        optimizer.build(list(variables))
        return
    known = {id(variable) for variable in optimizer._trainable_variables}
    if known != {id(variable) for variable in variables}:
        raise ReplicaError(
            "the optimizer was built for other variables than those that the model trains; make a "
            "new one, or compile the model again after freezing layers"
        )


def has_schedule(optimizer: Any) -> bool:
    """Whether the optimizer has its own learning rate schedule."""
    return isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule)


def describe_optimizer(optimizer: Any) -> str:
    """Kind, settings, and a hash of the state that it holds (momenta and the like)."""
    settings = {key: value for key, value in optimizer.get_config().items() if key != "name"}
    text = json.dumps(settings, default=str, sort_keys=True)
    held = checksum(*(np.array(read(variable)) for variable in kept_state(optimizer)))
    return f"{type(optimizer).__name__}({text}) with state {held:08x}"


def kept_state(optimizer: Any) -> list[Any]:
    """Its own variables but the learning rate."""
    rate = optimizer._learning_rate
    return [variable for variable in optimizer.variables if variable is not rate]


def pack_state(optimizer: Any) -> dict[str, Any]:
    """The state as copies, by number."""
    return {str(at): np.array(read(v)) for at, v in enumerate(kept_state(optimizer))}


def unpack_state(optimizer: Any, packed: Mapping[str, Any]) -> None:
    """Restore what `pack_state` returned."""
    variables = kept_state(optimizer)
    shapes = [tuple(variable.shape) for variable in variables]
    saved = [np.asarray(packed[str(at)]) for at in range(len(packed))]
    if [array.shape for array in saved] != shapes:
        raise CheckpointError(
            f"the optimizer keeps {len(shapes)} variables of other shapes than the {len(saved)} in "
            "the checkpoint; resume with the optimizer that the run had"
        )
    for variable, array in zip(variables, saved, strict=True):
        write(variable, array)


def reset_state(optimizer: Any, variables: Sequence[Any]) -> None:
    """Reset to the state of a new optimizer. Steps counted by its own schedule are kept."""
    fresh = type(optimizer).from_config(optimizer.get_config())
    fresh.build(list(variables))
    for variable, new in zip(kept_state(optimizer), kept_state(fresh), strict=True):
        if variable is not optimizer._iterations or not has_schedule(optimizer):
            write(variable, read(new))
