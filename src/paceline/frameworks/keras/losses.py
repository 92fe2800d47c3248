"""Losses for Keras models, by Paceline's names and Keras' own, chosen by outputs and targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from paceline.core.nests import is_nest, leaves, map_leaves, rebuild
from paceline.errors import ConfigError, DataError
from paceline.frameworks.replica import BatchLike

_CLASSES = ("cross_entropy", "categorical_crossentropy", "sparse_categorical_crossentropy", "nll")
NAMES = (*_CLASSES, "binary_crossentropy", "mse", "mae", "huber")
_NEAR_ONE = 0.02
"""How far from 1 the sum of probabilities in low precision may be."""


def resolve_loss(spec: Any, model: Any, outputs: Any, targets: Any) -> Any:
    """Keras' own loss for each output, in the structure of the outputs.

    One loss for several outputs is used for each of them. Cross entropies look at the outputs:
    from probabilities (a softmax or sigmoid) they are computed as such, else from logits.
    """
    if isinstance(outputs, Mapping):
        return _resolve_named(spec, model, outputs, targets)
    if is_nest(outputs):
        return _resolve_listed(spec, model, outputs, targets)
    if isinstance(spec, Mapping) and len(spec) == 1:
        spec = next(iter(spec.values()))
    if isinstance(spec, list | Mapping):
        raise ConfigError("loss has several parts, and the model has one output")
    return _resolve(spec, outputs, targets, _ends(model, 1)[0])


def _resolve_named(spec: Any, model: Any, outputs: Any, targets: Any) -> dict[str, Any]:
    names = list(outputs)
    specs = spec if isinstance(spec, Mapping) else dict.fromkeys(names, spec)
    _check_names(specs, names)
    ends = dict(zip(sorted(names), _ends(model, len(names)), strict=True))  # as Keras lists them
    aims = targets if isinstance(targets, Mapping) else dict.fromkeys(names)
    return {n: _resolve(specs[n], outputs[n], aims[n], ends[n]) for n in names if n in specs}


def _resolve_listed(spec: Any, model: Any, outputs: Any, targets: Any) -> list[Any]:
    names = list(getattr(model, "output_names", None) or map(str, range(len(outputs))))
    if isinstance(spec, Mapping):
        _check_names(spec, names)
        specs = [spec.get(name) for name in names]
    else:
        specs = list(spec) if isinstance(spec, list | tuple) else [spec] * len(outputs)
    if len(specs) != len(outputs):
        raise ConfigError(f"loss has {len(specs)} parts, and the model {len(outputs)} outputs")
    aims = targets if is_nest(targets) else [None] * len(outputs)
    ends = _ends(model, len(outputs))
    return [_resolve(*four) for four in zip(specs, outputs, aims, ends, strict=True)]


def arrange_targets(targets: Any, model: Any, outputs: Any) -> Any:
    """Targets in the structure of the outputs: by name, or in order."""
    if not is_nest(outputs):
        if is_nest(targets) and len(targets) == 1:
            return next(iter(leaves(targets)))
        return targets
    if isinstance(outputs, Mapping):
        if not isinstance(targets, Mapping):
            raise DataError(
                f"the model's outputs have names, so must targets: {', '.join(outputs)}"
            )
        return targets
    if isinstance(targets, Mapping):
        names = getattr(model, "output_names", list(targets))
        if set(names) != set(targets):
            raise DataError(
                f"the targets are {', '.join(targets)}, the model's outputs {', '.join(names)}"
            )
        return rebuild(outputs, [targets[name] for name in names])
    return rebuild(outputs, list(targets)) if is_nest(targets) else targets


def count_correct(loss: Any, outputs: Any, targets: Any) -> dict[str, float]:
    """How many outputs give the right class, where there is one output and targets are classes."""
    if is_nest(outputs) or is_nest(targets) or targets is None or not _is_of_classes(loss):
        return {}
    given, wanted = np.asarray(outputs), np.asarray(targets)
    if given.ndim < 2 or given.shape[-1] < 2:
        return {}
    if _is_one_hot(given, wanted):
        wanted = wanted.argmax(-1)
    elif wanted.ndim == given.ndim and wanted.shape[-1] == 1:
        wanted = wanted[..., 0]
    if wanted.shape != given.shape[:-1]:
        return {}
    right = given.argmax(-1) == wanted
    return {"correct": float(right.sum()), "counted": float(right.size)}


def check_labels(loss: Any, outputs: Any, targets: Any, batch: BatchLike) -> None:
    """Refuse a class that the model has no output for: some backends silently accept it."""
    if is_nest(outputs) or not isinstance(targets, np.ndarray):
        return
    _check_shape(loss, outputs, targets)
    if not _is_sparse(loss):
        return
    classes = int(outputs.shape[-1])
    outside = (targets < 0) | (targets >= classes)
    if targets.size == 0 or not outside.any():
        return
    row = int(outside.reshape(len(targets), -1).any(axis=1).argmax())
    indices = getattr(batch, "indices", None)
    sample = row if indices is None else int(indices[row])
    raise DataError(
        f"label {targets[row].tolist()} of sample {sample} is out of range: the model has "
        f"{classes} outputs, so labels go from 0 to {classes - 1}"
    )


def _check_shape(loss: Any, outputs: Any, targets: Any) -> None:
    """Targets of classes must be one-hot or numbers, as Keras' loss requires."""
    name, classes = _name_of(loss), int(outputs.shape[-1])
    same_axes = targets.ndim == len(outputs.shape)
    if not isinstance(loss, str | keras.losses.Loss) or classes < 2:
        return
    if name == "categorical_crossentropy":
        fits = same_axes and targets.shape[-1] == classes
        wanted = f"{classes} columns, one-hot; for numbers of classes it is sparse_{name}"
    elif name == "sparse_categorical_crossentropy":
        fits = targets.ndim == len(outputs.shape) - 1 or (same_axes and targets.shape[-1] == 1)
        wanted = f"a class from 0 to {classes - 1}, or one-hot as many columns as the model outputs"
    else:
        return
    if not fits:
        raise DataError(
            f"targets of shape {targets.shape[1:]} do not fit the model's outputs of shape "
            f"{tuple(outputs.shape[1:])}: the loss {name} needs {wanted}. Give the model's last "
            "layer as many units as there are classes, or set data.keys or loss"
        )


def _name_of(loss: Any) -> str:
    return str(loss if isinstance(loss, str) else getattr(loss, "name", ""))


def _resolve(spec: Any, output: Any, target: Any, end: Any) -> Any:
    if spec is None or not isinstance(spec, str):
        return spec
    losses = keras.losses
    if spec in _CLASSES:
        given = np.asarray(keras.ops.convert_to_numpy(output))
        logits = spec != "nll" and not _gives_probabilities(end, given)
        if target is not None and _is_one_hot(given, np.asarray(target)):
            return losses.CategoricalCrossentropy(from_logits=logits)
        return losses.SparseCategoricalCrossentropy(from_logits=logits)
    if spec == "binary_crossentropy":
        return losses.BinaryCrossentropy(from_logits=end in ("linear", "softmax"))
    known = {"mse": losses.MeanSquaredError, "mae": losses.MeanAbsoluteError, "huber": losses.Huber}
    if spec in known:
        return known[spec]()
    try:
        return losses.get(spec)
    except ValueError:
        raise ConfigError(
            f"loss is '{spec}', expected one of: {', '.join(NAMES)}; or a name of keras.losses"
        ) from None


def _check_names(specs: Mapping[str, Any], names: list[str]) -> None:
    unknown = [name for name in specs if name not in names]
    if unknown:
        raise ConfigError(
            f"loss names {', '.join(unknown)}, and the model's outputs are {', '.join(names)}"
        )


def _ends(model: Any, outputs: int) -> list[str | None]:
    """The activation that each output comes from, where that is known."""
    tensors = keras.tree.flatten(getattr(model, "outputs", None) or [])
    if len(tensors) != outputs:
        return [None] * outputs
    return [_activation(getattr(tensor, "_keras_history", None)) for tensor in tensors]


def _activation(history: Any) -> str | None:
    operation = getattr(history, "operation", None)
    if isinstance(operation, keras.layers.Softmax):
        return "softmax"
    found = getattr(operation, "activation", None)
    known = {"softmax": keras.activations.softmax, "sigmoid": keras.activations.sigmoid}
    known["linear"] = keras.activations.linear
    return next((name for name, function in known.items() if found is function), None)


def _gives_probabilities(end: str | None, outputs: Any) -> bool:
    if end is not None:
        return end != "linear"
    sums = outputs.astype(np.float64).sum(-1)
    return bool((outputs >= 0).all() and (abs(sums - 1) < _NEAR_ONE).all())


def _is_one_hot(outputs: Any, targets: Any) -> bool:
    return bool(outputs.shape == targets.shape and outputs.shape[-1] > 1)


def _is_of_classes(loss: Any) -> bool:
    name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    return "categorical" in name or "cross_entropy" in name


def _is_sparse(loss: Any) -> bool:
    ignores = getattr(loss, "ignore_class", None) is not None
    name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    return "sparse_categorical" in name and not ignores


def shorten(value: Any, samples: int) -> Any:
    """The first few samples of each array."""
    return map_leaves(lambda leaf: None if leaf is None else leaf[:samples], value)
