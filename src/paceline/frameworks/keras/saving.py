"""Save Keras models: whole, or rebuilt from an architecture and arrays."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from paceline.core.vectors import Vector
from paceline.errors import ConfigError
from paceline.frameworks.keras.backend import without_tensorflow
from paceline.frameworks.keras.model_files import read_architecture
from paceline.frameworks.keras.variable_names import name_variables
from paceline.frameworks.keras.vectors import is_seed, read, write
from paceline.frameworks.model_files import PlainArray

_log = logging.getLogger("paceline.frameworks")


def save_model(model: Any, path: Path) -> Path:
    """Write model.keras, or the variables by name if Keras cannot write the model."""
    whole = path.with_suffix(".keras")
    try:
        with without_tensorflow():
            model.save(whole)
    except (NotImplementedError, TypeError, ValueError) as error:
        whole.unlink(missing_ok=True)
        _log.warning("Keras cannot write this model (%s); only its variables are saved", error)
        return _save_variables(model, path.with_suffix(".safetensors"))
    return whole


def _save_variables(model: Any, path: Path) -> Path:
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(values) for name, values in named_arrays(model).items()}
    save_file(arrays, str(path), metadata={"format": "np"})
    path.chmod(0o644)  # safetensors makes it readable for its owner alone
    return path


def named_arrays(model: Any) -> dict[str, Vector]:
    """The values of all variables by name, without seeds, which files do not hold."""
    return {name: np.array(read(v)) for name, v in _named_variables(model).items()}


def _named_variables(model: Any) -> dict[str, Any]:
    variables = list({id(v): v for v in model.variables}.values())
    names = name_variables(model, variables)
    return {n: v for n, v in zip(names, variables, strict=True) if not is_seed(v)}


def describe_architecture(model: Any) -> str | None:
    """As Keras' JSON; None if the model cannot describe it."""
    try:
        with without_tensorflow():
            return str(model.to_json())
    except (NotImplementedError, TypeError, ValueError):
        return None


def write_model(architecture: str, arrays: Mapping[str, PlainArray], file: BinaryIO) -> None:
    """Build the model of this architecture with these arrays, and write it as .keras."""
    model = read_architecture(architecture, "the architecture in the checkpoint")
    variables = _named_variables(model)
    if set(variables) != set(arrays):
        odd = sorted(set(variables) ^ set(arrays))
        raise ConfigError(
            f"the checkpoint's architecture and arrays differ in {', '.join(odd[:5])}; export "
            ".safetensors"
        )
    for name, variable in variables.items():
        values = arrays[name].octets.view(read(variable).dtype).reshape(arrays[name].shape)
        write(variable, values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        with without_tensorflow():
            model.save(path)
        file.write(path.read_bytes())
