"""An optimizer that averages the gradients of all ranks, and models that start equal."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import keras
import numpy as np

from paceline.comm import World
from paceline.core.vectors import Vector
from paceline.frameworks.keras.loop import KerasLoop, around_apply
from paceline.runtime.watchdog import watched
from paceline.runtime.world import init
from paceline.sync.replicas import start_equal as _start_equal
from paceline.training.loop.stepper import StepLimits


def averaged(
    optimizer: str | Mapping[str, object] | keras.optimizers.Optimizer,
    world: World | None = None,
) -> keras.optimizers.Optimizer:
    """The optimizer, which from now on averages the gradients of all ranks before each step.

    Ranks count alike, whatever their batches, and must take the same number of steps; KeepPace
    with rule bsp weighs by samples and needs no such care. All ranks must begin with the same
    weights: see `start_equal`. With TensorFlow, compile the model with jit_compile=False.
    """
    optimizer = keras.optimizers.get(optimizer)
    world = world or init()
    if world.size > 1:
        around_apply(optimizer, partial(_average, world))
    return optimizer


def _average(world: World, gradients: list[Vector | None], samples: float) -> list[Vector | None]:
    there = [gradient for gradient in gradients if gradient is not None]
    flat = np.concatenate([gradient.reshape(-1) for gradient in there]).astype(np.float32)
    limits = StepLimits()
    with watched(
        lambda: (0, 0), limits.stall_warning_s, limits.stall_timeout_s
    ):  # perhaps in a thread of the backend's
        world.all_reduce(flat)
    flat /= world.size
    ends = np.cumsum([gradient.size for gradient in there])[:-1]
    means = iter(np.split(flat, ends))
    return [g if g is None else next(means).reshape(g.shape) for g in gradients]


def start_equal(model: keras.Model, world: World | None = None) -> None:
    """Give the compiled model rank 0's weights, on every rank."""
    loop = KerasLoop(model, model.optimizer)
    _start_equal(world or init(), loop)
    loop.release()
