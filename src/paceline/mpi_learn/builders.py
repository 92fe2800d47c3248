"""mpi_learn's model builders: how every rank makes the model."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError, ReplicaError
from paceline.frameworks.registry import is_model, load_file
from paceline.mpi_learn.own_model import METHODS, trains_itself
from paceline.training.build import call_seeded


class ModelBuilder:
    """Subclass it and override `build_model`, which takes no arguments and returns the model.

    A Keras model, a torch module, or any object with `get_weights`, `set_weights`,
    `train_on_batch` and `test_on_batch`. Every rank builds its own; rank 0's weights count.
    """

    def __init__(self, comm: Any = None) -> None:
        self.comm = comm

    def build_model(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no build_model; write it")


class MPIModel:
    """A wrapper that `build_model` may return, as in later versions of mpi_learn."""

    def __init__(self, model: Any = None, models: Any = None) -> None:
        if model is None or models:
            raise ConfigError(
                "MPIModel takes one model; several models trained as one are not supported: write "
                "an object with get_weights, set_weights, train_on_batch and test_on_batch"
            )
        self.model = model


class ModelFromJson(ModelBuilder):
    """A Keras model from a JSON file written by `to_json()`, optionally with `weights`."""

    suffixes: tuple[str, ...] = (".json", ".keras")

    def __init__(
        self,
        comm: Any = None,
        filename: str | os.PathLike[str] | None = None,
        json_str: str | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        weights: str | None = None,
    ) -> None:
        super().__init__(comm)
        if custom_objects:
            raise ConfigError(
                f"custom_objects ({', '.join(custom_objects)}): write a ModelBuilder whose "
                "build_model makes the model; then no file needs your classes"
            )
        self.filename, self.json_str, self.weights = filename, json_str, weights

    def check(self) -> None:
        """Refuse what cannot be a model, without loading it."""
        if self.json_str is None:
            _check_file(self.filename, self.suffixes)

    def build_model(self) -> Any:
        if self.json_str is not None:
            from paceline.frameworks.keras.model_files import read_architecture

            model = read_architecture(self.json_str, "json_str")
        else:
            model = load_file(_check_file(self.filename, self.suffixes))
        if self.weights is not None:
            model.load_weights(_check_file(self.weights, (".h5", ".keras")))
        return model


class ModelFromJsonTF(ModelFromJson):
    """The same, with TensorFlow as Keras' backend."""

    def __init__(
        self,
        comm: Any = None,
        filename: str | os.PathLike[str] | None = None,
        json_str: str | None = None,
        device_name: str = "cpu",
        custom_objects: Mapping[str, Any] | None = None,
        weights: str | None = None,
    ) -> None:
        super().__init__(comm, filename, json_str, custom_objects, weights)
        self.device = device_name
        choose_backend("tensorflow")


class ModelPytorch(ModelBuilder):
    """A torch module from a file written by `torch.save`, of torch.nn's own classes.

    `weights` is a state_dict to load into it.
    """

    suffixes: tuple[str, ...] = (".torch", ".pt", ".pt2")

    def __init__(
        self,
        comm: Any = None,
        filename: str | os.PathLike[str] | None = None,
        weights: str | None = None,
        gpus: int = 0,
    ) -> None:
        super().__init__(comm)
        if gpus > 1:
            raise ConfigError(f"gpus is {gpus}, expected 0 or 1: start a rank for each GPU")
        self.filename, self.weights, self.gpus = filename, weights, gpus

    def check(self) -> None:
        """Refuse what cannot be a model, without loading it."""
        _check_file(self.filename, self.suffixes)

    def build_model(self) -> Any:
        model = load_file(_check_file(self.filename, self.suffixes))
        if self.weights is not None:
            from paceline.frameworks.torch.model_files import load_weights

            load_weights(model, self.weights)
        return model


def choose_backend(name: str) -> None:
    """Let Keras use this backend; it must not have been imported with another."""
    keras: Any = sys.modules.get("keras")
    if keras is not None and keras.config.backend() != name:
        raise ConfigError(
            f"Keras was imported with the backend {keras.config.backend()}, and {name} is "
            f"wanted; set KERAS_BACKEND={name} before the first import of keras"
        )
    os.environ["KERAS_BACKEND"] = name


def build(builder: ModelBuilder, seed: int) -> Any:
    """The model that a builder makes, from the same random numbers on every rank."""
    model = call_seeded(builder.build_model, seed)
    model = model.model if isinstance(model, MPIModel) else model
    if not is_model(model) and not trains_itself(model):
        raise ReplicaError(
            f"{type(builder).__name__}.build_model returned a {type(model).__name__}, expected a "
            f"Keras model, a torch module, or an object with {', '.join(METHODS)}"
        )
    return model


def _check_file(name: Any, suffixes: tuple[str, ...]) -> Path:
    if not isinstance(name, str | os.PathLike):
        raise ConfigError(f"filename is {name!r}, expected the name of one file")
    path = Path(name)
    if path.suffix not in suffixes:
        raise ConfigError(f"{path} is not a file of this kind; expected {', '.join(suffixes)}")
    if not path.is_file():
        raise ConfigError(f"there is no file {path} (looked for {path.absolute()})")
    return path
