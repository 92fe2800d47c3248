"""Adapters of frameworks; each is imported only when a model of it is met."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import ConfigError, ReplicaError
from paceline.frameworks.keras import backend as keras_backend
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
"""A model's class (or a base of it); its Replica, and its adapter for a user's own loop."""

FILES = {
    ".keras": "paceline.frameworks.keras.model_files:load_model",
    ".json": "paceline.frameworks.keras.model_files:load_architecture",
    ".h5": "paceline.frameworks.keras.model_files:refuse_legacy",
    ".hdf5": "paceline.frameworks.keras.model_files:refuse_legacy",
    ".pt2": "paceline.frameworks.torch.model_files:load_exported",
    ".pt": "paceline.frameworks.torch.model_files:load_module",
    ".torch": "paceline.frameworks.torch.model_files:load_module",
}
"""How models that lie in files are read, by the suffix; each takes the path."""

__all__ = [
    "ADAPTERS",
    "FILES",
    "Replica",
    "accept_generator_states",
    "generator_states",
    "is_model",
    "limit_threads",
    "load_file",
    "loaded_frameworks",
    "make_loop",
    "make_replica",
    "prepare_backends",
    "seed_generators",
    "set_threads",
]


def make_replica(model: Any, loss: Any, optimizer: Any, **options: Any) -> Replica:
    """The model as a Replica; one that is a Replica already is taken as it is.

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
    """The model and optimizer of a user's own training loop, adapted to be exchanged."""
    return _adapter(model, 1)(model, optimizer)


def load_file(path: Path) -> Any:
    """The model in a file of one of the kinds in FILES."""
    module, _, name = FILES[path.suffix].partition(":")
    return getattr(importlib.import_module(module), name)(path)


def is_model(thing: Any) -> bool:
    """Whether this is a model as it is, and not a function that builds one."""
    return isinstance(thing, Replica) or _find(thing) is not None


def _adapter(model: Any, which: int) -> Any:
    adapters = _find(model)
    if adapters is None:
        modules = (replica.partition(":")[0] for replica, _ in ADAPTERS.values())
        known = ", ".join(module.rpartition(".")[2] for module in modules)
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


def seed_generators(seed: int) -> None:
    """Seed Python's, numpy's and every loaded framework's random numbers."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    if "keras" in sys.modules:
        keras_backend.seed_backend(seed)


def generator_states() -> dict[str, Any]:
    """Where these random numbers are, as nested dicts of arrays and plain values."""
    version, numbers, ahead = random.getstate()
    of_numpy = np.random.get_state(legacy=False)
    assert isinstance(of_numpy, dict)
    states: dict[str, Any] = {
        "python": {"version": version, "numbers": np.array(numbers, np.uint64), "ahead": ahead},
        "numpy": {**of_numpy, "state": dict(of_numpy["state"])},
    }
    if "torch" in sys.modules:
        states["torch"] = {"bytes": sys.modules["torch"].get_rng_state().numpy().copy()}
    if "keras" in sys.modules:
        states["keras"] = keras_backend.backend_state()
    return states


def accept_generator_states(states: dict[str, Any]) -> None:
    """Go on with random numbers where `generator_states` was."""
    own = states["python"]
    random.setstate((own["version"], tuple(map(int, own["numbers"])), own["ahead"]))
    np.random.set_state(states["numpy"])
    if "torch" in states and "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.set_rng_state(torch.from_numpy(np.array(states["torch"]["bytes"], np.uint8)))
    if "keras" in states and "keras" in sys.modules:
        keras_backend.accept_backend_state(states["keras"])


def prepare_backends(threads: int) -> None:
    """Before a model's code is imported: what frameworks read from the environment when they
    start, and a backend for Keras that is installed."""
    keras_backend.prepare_backend(threads)


def limit_threads(threads: int) -> None:
    """Let loaded frameworks use at most this many threads; a lower limit stays."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > threads:
        torch.set_num_threads(threads)
    keras_backend.limit_backend_threads(threads)


def set_threads(threads: int) -> None:
    """Let loaded frameworks use exactly this many threads."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    keras_backend.limit_backend_threads(threads)
