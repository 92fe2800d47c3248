"""Torch models and weights in files; no code in a file is run."""

from __future__ import annotations

import inspect
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear  # within attention

from paceline.core.regular_files import is_regular
from paceline.core.user_code import describe_failure
from paceline.errors import ConfigError
from paceline.frameworks.model_files import PlainArray
from paceline.frameworks.torch.exported_program import read_program

_FUNCTIONS = (F.relu, F.gelu, torch.relu, torch.tanh, torch.sigmoid)
"""Some of torch's own layers hold one of them."""


def load_exported(path: Path) -> torch.nn.Module:
    """The model in a `.pt2` file."""
    return read_program(path)


def load_module(path: Path) -> torch.nn.Module:
    """A whole module that torch.save has written, if it is made of torch's own layers."""
    if _is_torchscript(path):
        raise ConfigError(
            f"{path} is TorchScript, a program whose operators may read and write files; if you "
            "trust it, name a function that returns torch.jit.load(...): file.py:function"
        )
    with torch.serialization.safe_globals(_layers()):
        found = _load(
            path,
            "that is not one of torch's own layers, and unpickling it could run code; name a "
            "function that makes the model, file.py:function, with its state_dict as weights",
        )
    if not isinstance(found, torch.nn.Module):
        what = "a state_dict" if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise ConfigError(
            f"{path} holds {what}, not a model; name a function that makes the model, "
            f"file.py:function, and set weights to {path}"
        )
    return found


def load_weights(module: torch.nn.Module, path: str) -> None:
    """Load a state_dict into the module; every name must match."""
    file = Path(path)
    if not is_regular(file):
        raise ConfigError(f"weights: there is no file {path[:500]}; check the path")
    tensors = _read_safetensors(file) if file.suffix == ".safetensors" else _read_pickled(file)
    own = module.state_dict()
    faults = [
        *_listed("missing there", [name for name in own if name not in tensors]),
        *_listed("not in the model", [name for name in tensors if name not in own]),
        *_listed("of another shape", _misshapen(own, tensors)),
        *_listed("of another kind", _odd(own, tensors)),
    ]
    if faults:
        raise ConfigError(f"weights {path} do not fit the model: {'; '.join(faults)}")
    try:
        module.load_state_dict(tensors)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"weights {path} do not fit the model: {describe_failure(error)}"
        ) from error


def _read_safetensors(file: Path) -> dict[str, torch.Tensor]:
    """Includes the other names of tied weights, which Paceline writes into the metadata."""
    from safetensors import safe_open

    try:
        with safe_open(str(file), framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            aliases = dict(opened.metadata() or {})
    except Exception as error:  # the parser raises many kinds, all for a damaged file
        raise ConfigError(f"weights {file} is not a safetensors file: {error}") from error
    tied = {name: tensors[of] for name, of in aliases.items() if of in tensors}
    return tied | tensors


def _read_pickled(file: Path) -> dict[str, torch.Tensor]:
    found = _load(file, "a state_dict holds tensors alone; save model.state_dict()")
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in found.items()
    ):
        raise ConfigError(f"weights {file} is not a state_dict; save model.state_dict()")
    return dict(found)


def _load(path: Path, remedy: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except Exception as error:  # pickles fail in many ways
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused is None:
            cause = " ".join(str(error).split())[:200]
            raise ConfigError(f"{path} is not what torch.save writes: {cause}") from error
        raise ConfigError(f"{path} needs {refused[1]}: {remedy}") from error


def _layers() -> list[Any]:
    classes = [kind for kind in vars(torch.nn).values() if inspect.isclass(kind)]
    layers = [kind for kind in classes if issubclass(kind, torch.nn.Module)]
    return [*layers, NonDynamicallyQuantizableLinear, set, *_FUNCTIONS]


def _is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except Exception:  # no archive, or a damaged one: torch.load reports it
        return False


def _listed(what: str, names: Iterable[str]) -> list[str]:
    found = list(names)
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return [f"{what}: {', '.join(found[:5])}{more}"] if found else []


def _misshapen(own: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} ({tuple(given[name].shape)}, expected {tuple(tensor.shape)})"
        for name, tensor in own.items()
        if name in given and given[name].shape != tensor.shape
    ]


def _odd(own: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Tensors that are not plain numbers: copying them would lose something or fail."""
    return [
        f"{name} ({found}, expected {str(tensor.dtype).removeprefix('torch.')})"
        for name, tensor in own.items()
        if name in given and (found := _oddity(given[name], tensor))
    ]


def _oddity(given: torch.Tensor, own: torch.Tensor) -> str | None:
    kind = str(given.dtype).removeprefix("torch.")
    if given.layout != torch.strided:
        return str(given.layout).removeprefix("torch.").replace("_", " ")
    if given.is_meta:
        return f"{kind} on the meta device, without values"
    if given.is_quantized or (given.is_complex() and not own.is_complex()):
        return kind
    return None


def write_state_dict(
    arrays: Mapping[str, PlainArray], aliases: Mapping[str, str], file: BinaryIO
) -> None:
    """Write a state_dict for `torch.load(file, weights_only=True)`; tied weights share memory."""
    tensors = {name: _tensor(name, array) for name, array in arrays.items()}
    torch.save(tensors | {name: tensors[of] for name, of in aliases.items()}, file)


def _tensor(name: str, array: PlainArray) -> torch.Tensor:
    kind = getattr(torch, array.kind, None)
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"'{name}' is {array.kind}, which torch does not know")
    if not array.octets.size:
        return torch.empty(array.shape, dtype=kind)
    return torch.from_numpy(np.array(array.octets)).view(kind).reshape(array.shape)
