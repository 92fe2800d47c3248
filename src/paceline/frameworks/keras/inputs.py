"""Batches in the form that a Keras model takes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from paceline.core.nests import is_nest, leaves, map_leaves
from paceline.errors import DataError

_TAKES_RAW = {
    *("Rescaling", "Normalization", "Embedding", "CategoryEncoding", "Discretization"),
    *("IntegerLookup", "Hashing", "HashedCrossing"),
}


class Intake:
    """Turns arrays into the backend's tensors.

    Bytes are pixels and are scaled to 0..1, as for every framework here; unless the model has a
    layer that takes them raw (Rescaling, Embedding, ...) or declares integer inputs.
    """

    def __init__(self, model: Any) -> None:
        self._float = str(keras.backend.standardize_dtype(model.compute_dtype))
        kinds = {type(layer).__name__ for layer in model._flatten_layers()}
        tensors = keras.tree.flatten(getattr(model, "inputs", None) or [])
        whole = any("int" in str(tensor.dtype) for tensor in tensors)
        self._scales = not whole and not kinds.intersection(_TAKES_RAW)
        self._shape = tuple(tensors[0].shape)[1:] if len(tensors) == 1 else None

    def inputs(self, value: Any) -> Any:
        """A single array may differ from the model's input in axes of length 1."""
        if is_nest(value) and len(value) == 1 and self._shape is not None:
            value = next(iter(leaves(value)))
        arrays = map_leaves(self._read, value)
        if self._shape is not None and isinstance(arrays, np.ndarray):
            arrays = _fit(arrays, self._shape)
        return map_leaves(lambda leaf: self._tensor(leaf, images=True), arrays)

    def targets(self, value: Any) -> Any:
        """As numpy arrays, from which losses can be chosen."""
        return map_leaves(self._read, value)

    def target_tensors(self, value: Any) -> Any:
        return map_leaves(lambda leaf: self._tensor(leaf, images=False), value)

    def _read(self, leaf: Any) -> Any:
        if leaf is None:
            return None
        if hasattr(leaf, "detach"):
            leaf = leaf.detach().cpu()
        array = np.asarray(leaf)
        if array.dtype.kind not in "biufc":
            raise DataError(f"arrays of {array.dtype} cannot be trained on; make them numbers")
        return array

    def _tensor(self, array: Any, images: bool) -> Any:
        if array is None:
            return None
        if images and array.dtype == np.uint8 and self._scales:
            array = array.astype(np.float32) / np.float32(255)
        if array.dtype.kind == "f":
            return keras.ops.convert_to_tensor(array, dtype=self._float)
        return keras.ops.convert_to_tensor(array)


def _fit(array: Any, shape: tuple[int | None, ...]) -> Any:
    """Move, add or drop axes of length 1: for an image of one channel they do not matter."""
    own = array.shape[1:]
    same_rank = len(own) == len(shape)
    if same_rank and all(w in (None, n) for n, w in zip(own, shape, strict=True)):
        return array
    if None in shape or [n for n in own if n != 1] != [n for n in shape if n != 1]:
        return array  # Keras says what is wrong
    return array.reshape(len(array), *shape)
