"""Read Keras models: .keras archives and architectures in JSON."""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.frameworks.keras.backend import prepare_backend, quiet_stderr, without_tensorflow

_WRITE_A_FUNCTION = (
    "Write a function that makes the model (with custom classes imported) and name it: "
    "file.py:function"
)

_NOTHING_TO_LOAD = r"\s*Skipping variable loading for optimizer .* has [12] variables"
"""Keras' warning, on every rank, about a model that was compiled but not yet trained: only the step
and the rate of its optimizer are in the file."""


def load_model(path: Path) -> Any:
    """The model in a .keras file. No code in it is run: Keras' safe mode refuses Python code."""
    keras = import_keras()
    if not zipfile.is_zipfile(path):
        raise ConfigError(
            f"{path} is not a .keras file: it is not a zip archive. Save the model again"
        )
    try:
        with without_tensorflow(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", _NOTHING_TO_LOAD)
            return keras.saving.load_model(path, safe_mode=True)
    except Exception as error:  # Keras and zipfile raise many kinds
        raise _refusal(str(path), error) from error


def load_architecture(path: Path) -> Any:
    """The model of an architecture in JSON (`model.to_json()`), with new weights."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    return read_architecture(text, str(path))


def read_architecture(text: str, name: str) -> Any:
    """The same from text; `name` is for error messages."""
    keras = import_keras()
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not JSON: {error}") from error
    if not isinstance(config, dict) or "class_name" not in config:
        raise ConfigError(
            f"{name} is not a Keras architecture: it has no class_name. Write it by model.to_json()"
        )
    try:
        with without_tensorflow():
            model = keras.saving.deserialize_keras_object(config, safe_mode=True)
    except Exception as error:  # Keras raises many kinds
        raise _refusal(name, error) from error
    if not isinstance(model, keras.Model):
        raise ConfigError(f"{name} holds a {type(model).__name__}, expected a model")
    return model


def refuse_legacy(path: Path) -> Any:
    """HDF5 models of Keras 2 may hold pickled code, and Keras' safe mode does not cover them."""
    raise ConfigError(
        f"{path} is a model in the old HDF5 format, which may hold code; load it where you trust "
        "it and save it as .keras: keras.models.load_model('model.h5').save('model.keras')"
    )


def import_keras() -> Any:
    """Import Keras, without TensorFlow's chatter, with a backend that is installed."""
    prepare_backend()
    try:
        with quiet_stderr():
            import keras
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Keras models need Keras and a backend ({error}); install them: "
            "pip install 'paceline[keras]' torch"
        ) from None
    return keras


def _refusal(name: str, error: Exception) -> ConfigError:
    text = " ".join(str(error).split())
    short = text if len(text) <= 300 else f"{text[:300]}..."
    if "unsafe" in text or "Lambda" in text:
        return ConfigError(
            f"{name} holds Python code (a Lambda layer), which is not run from a file. "
            f"{_WRITE_A_FUNCTION}"
        )
    unknown = re.findall(r"Could not locate (?:class|function) '([^']+)'", text)
    if unknown:
        names = ", ".join(dict.fromkeys(unknown))
        return ConfigError(f"{name} has {names}, which Keras does not have. {_WRITE_A_FUNCTION}")
    if "register_keras_serializable" in text:
        return ConfigError(
            f"{name} has classes that Keras does not have: {short} {_WRITE_A_FUNCTION}"
        )
    return ConfigError(f"{name} cannot be read by Keras: {short}")
