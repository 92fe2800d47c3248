"""Call plain Python in the middle of a training step, even a compiled one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from paceline.core.vectors import Vector

Swap = Callable[[list[Vector | None], float], list[Vector | None]]
"""From gradients (None where there is none) and the number of samples to other gradients."""


def swap_gradients(swap: Swap, gradients: Sequence[Any], samples: Any) -> list[Any]:
    """The gradients that `swap` returns for these, as tensors of the backend.

    In a compiled step `swap` runs once per step, in order, in a thread of the backend. A variable
    without a gradient has none afterwards either, except with torch.
    """
    backend = keras.backend.backend()
    if backend == "torch":
        return _swap_torch(swap, gradients, samples)
    there = [at for at, gradient in enumerate(gradients) if gradient is not None]

    def call(count: Any, *arrays: Any) -> list[Vector]:
        given: list[Vector | None] = [None] * len(gradients)
        for at, array in zip(there, arrays, strict=True):
            given[at] = np.asarray(array)
        found = swap(given, float(count))
        # The backend may keep these very arrays, and ours are overwritten in the next step.
        return [np.array(found[at], array.dtype) for at, array in zip(there, arrays, strict=True)]

    call_out = _call_from_tensorflow if backend == "tensorflow" else _call_from_jax
    got = iter(call_out(call, samples, [gradients[at] for at in there]))
    return [gradient if gradient is None else next(got) for gradient in gradients]


def _swap_torch(swap: Swap, gradients: Sequence[Any], samples: Any) -> list[Any]:
    import torch

    given = [g if g is None else _dense(g).detach().cpu().numpy() for g in gradients]
    found = swap(given, float(samples))
    like = next((g for g in gradients if g is not None), torch.empty(0))
    return [
        array if array is None else torch.from_numpy(array).to((like if g is None else g).device)
        for g, array in zip(gradients, found, strict=True)
    ]


def _dense(gradient: Any) -> Any:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _call_from_tensorflow(call: Callable[..., Any], samples: Any, gradients: list[Any]) -> Any:
    import tensorflow as tf

    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]  # of slices, too
    count = tf.cast(samples, tf.float64)
    got = tf.numpy_function(call, [count, *dense], [gradient.dtype for gradient in dense])
    for fresh, gradient in zip(got, dense, strict=True):
        fresh.set_shape(gradient.shape)
    return got


def _call_from_jax(call: Callable[..., Any], samples: Any, gradients: list[Any]) -> Any:
    import jax
    from jax.experimental import io_callback

    shapes = [jax.ShapeDtypeStruct(gradient.shape, gradient.dtype) for gradient in gradients]
    count = np.float32(samples)  # a batch's shape is known when a step is compiled
    return io_callback(call, shapes, count, *gradients, ordered=True)


def is_compiling(tensors: Sequence[Any]) -> bool:
    """Whether these are placeholders in a step that is being compiled."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return bool(tf.inside_function())
    if backend == "jax":
        import jax

        return any(isinstance(tensor, jax.core.Tracer) for tensor in tensors)
    return False


def count_samples(inputs: Any) -> Any:
    """How many samples a batch has: a number, or a tensor in a step that TensorFlow compiles."""
    first = next(leaf for leaf in keras.tree.flatten(inputs) if leaf is not None)
    return keras.ops.shape(first)[0]
