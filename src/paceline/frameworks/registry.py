"""The adapter for each kind of model; imported only when such a model is used."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError, ReplicaError
from paceline.frameworks.replica import Replica

ADAPTERS = {
    "keras.src.models.model.Model": (
        "paceline.frameworks.keras.replica:KerasReplica",
        "paceline.frameworks.keras.loop:KerasLoop",
    ),
    "paceline.frameworks.jax.model.JaxModel": (
        "paceline.frameworks.jax.replica:JaxReplica",
        "paceline.frameworks.jax.replica:JaxLoop",
    ),
    "torch.nn.modules.module.Module": (
        "paceline.frameworks.torch.replica:TorchReplica",
        "paceline.frameworks.torch.loop:TorchLoop",
    ),
}
"""A model's class (or a base of it): its Replica, and its adapter for a loop of your own."""

FILES = {
    ".keras": "paceline.frameworks.keras.model_files:load_model",
    ".json": "paceline.frameworks.keras.model_files:load_architecture",
    ".h5": "paceline.frameworks.keras.model_files:refuse_legacy",
    ".hdf5": "paceline.frameworks.keras.model_files:refuse_legacy",
    ".pt2": "paceline.frameworks.torch.model_files:load_exported",
    ".pt": "paceline.frameworks.torch.model_files:load_module",
    ".torch": "paceline.frameworks.torch.model_files:load_module",
}
"""How model files are read, by suffix; each function takes the path."""


def make_replica(model: Any, loss: Any, optimizer: Any, **options: Any) -> Replica:
    """The model as a Replica; one that already is a Replica is used as it is.

    Options are settings that only some frameworks have.
    """
    kind: Any = type(model) if isinstance(model, Replica) else _adapter(model, 0)
    unread = [name for name in options if name not in getattr(kind, "OPTIONS", ())]
    if unread:
        raise ConfigError(
            f"{', '.join(unread)} cannot be set for this model: it becomes a {kind.__name__}, "
            f"which has no such setting (a TorchReplica has)"
        )
    if isinstance(model, Replica):
        return model
    replica: Replica = kind(model, loss, optimizer, **options)
    return replica


def make_loop(model: Any, optimizer: Any) -> Any:
    """The adapter for the model and optimizer of a training loop of your own."""
    return _adapter(model, 1)(model, optimizer)


def load_file(path: Path) -> Any:
    """The model in a file of one of the kinds in FILES."""
    module, _, name = FILES[path.suffix].partition(":")
    return getattr(importlib.import_module(module), name)(path)


def is_model(thing: Any) -> bool:
    """Whether this is a model, not a function that builds one."""
    return isinstance(thing, Replica) or _find(thing) is not None


def _adapter(model: Any, which: int) -> Any:
    adapters = _find(model)
    if adapters is None:
        known = ", ".join(replica.split(".")[2] for replica, _ in ADAPTERS.values())
        raise ReplicaError(
            f"the model is a {type(model).__module__}.{type(model).__qualname__}, expected a model "
            f"of: {known}; or a Replica (paceline/frameworks/numpy.py is an example)"
        )
    module, _, name = adapters[which].partition(":")
    return getattr(importlib.import_module(module), name)


def _find(model: Any) -> tuple[str, str] | None:
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(model).__mro__)
    return next((ADAPTERS[name] for name in names if name in ADAPTERS), None)


def loaded_frameworks() -> set[str]:
    """Which frameworks this process has imported so far."""
    known = {name.partition(".")[0] for name in ADAPTERS} | {"jax"}  # JaxModel is our own
    return known & set(sys.modules)
