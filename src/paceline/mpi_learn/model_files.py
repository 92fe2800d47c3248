"""The model files of mpi_learn's first example, as its BuildModel.py wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError, OutputError

FILES = {"mnist": "mnist_arch.json", "mnist_pytorch": "mnist_pytorch_arch.torch"}
"""What can be built, and the file it becomes."""


def write_model(name: str, folder: Path) -> Path:
    """Write the model file into the folder; returns its path."""
    if name not in FILES:
        raise ConfigError(f"there is no model {name!r} to build; known: {', '.join(FILES)}")
    path = folder / FILES[name]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if name == "mnist":
            path.write_text(json.dumps(mnist_architecture(), indent=1) + "\n", encoding="utf-8")
        else:
            from paceline.models.mnist_pytorch import save

            save(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error
    return path


def mnist_architecture() -> dict[str, Any]:
    """The convolutional network for MNIST as Keras 3 writes it; does not need Keras.

    Images (n, 28, 28, 1) to the probabilities of ten digits; 600,810 parameters.
    """
    layers = [
        _layer("InputLayer", "images", batch_shape=[None, 28, 28, 1], dtype="float32"),
        _layer("Conv2D", "conv_1", filters=32, kernel_size=[3, 3], activation="relu"),
        _layer("Conv2D", "conv_2", filters=32, kernel_size=[3, 3], activation="relu"),
        _layer("MaxPooling2D", "pool", pool_size=[2, 2]),
        _layer("Dropout", "dropout_1", rate=0.25),
        _layer("Flatten", "flatten"),
        _layer("Dense", "dense_1", units=128, activation="relu"),
        _layer("Dropout", "dropout_2", rate=0.25),
        _layer("Dense", "dense_2", units=10, activation="softmax"),
    ]
    config = {"name": "mnist", "layers": layers}
    return {"module": "keras", "class_name": "Sequential", "config": config}


def _layer(kind: str, name: str, **settings: Any) -> dict[str, Any]:
    return {"module": "keras.layers", "class_name": kind, "config": {"name": name, **settings}}
