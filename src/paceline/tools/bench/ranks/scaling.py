"""What the ranks of `bench scaling` do: train on random images, and say where the time went."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from paceline.comm import World
from paceline.data import ArraySource
from paceline.tools.bench.scaling import ScalingSettings, ScalingTimes
from paceline.training.trainer import Trainer

_SHAPE, _CLASSES = (3, 224, 224), 1000
_EPOCHS = 2
"""The first is slow: memory is new. The last is measured."""


def measure(world: World, settings: ScalingSettings) -> ScalingTimes:
    """Seconds that all ranks took for the images, the split of that time, and their number."""
    result = Trainer(
        settings["network"],
        random_images(settings["images"]),
        rule="bsp",
        epochs=_EPOCHS,
        optimizer={"name": "sgd", "lr": 0.001, "momentum": 0.9},
        data={"batch_size": settings["batch"]},
        run_dir=settings["run_dir"],
        progress="off",
        events_every=0,
        world=world,
    ).fit()
    last = result.history[-1]
    return {"seconds": last.seconds, "split": asdict(last.time), "images": last.samples}


def random_images(count: int) -> ArraySource:
    """So many images with labels, the same on every rank."""
    rng = np.random.default_rng(1)
    images = rng.integers(256, size=(count, *_SHAPE), dtype=np.uint8)
    return ArraySource(images, rng.integers(_CLASSES, size=count), name="random images")
