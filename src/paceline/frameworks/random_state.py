"""Random numbers of Python, numpy and every loaded framework: seeds, and states to save."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from paceline.frameworks.keras import backend as keras_backend


def seed_generators(seed: int) -> None:
    """Seed Python's, numpy's and every loaded framework's random numbers."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    if "keras" in sys.modules:
        keras_backend.seed_backend(seed)


def generator_states() -> dict[str, Any]:
    """The states of these generators, as nested dicts of arrays and plain values."""
    version, numbers, ahead = random.getstate()
    of_numpy = np.random.get_state(legacy=False)
    assert isinstance(of_numpy, dict)
    states: dict[str, Any] = {
        "python": {"version": version, "numbers": np.array(numbers, np.uint64), "ahead": ahead},
        "numpy": {**of_numpy, "state": dict(of_numpy["state"])},
    }
    if "torch" in sys.modules:
        states["torch"] = {"bytes": sys.modules["torch"].get_rng_state().numpy().copy()}
    if "keras" in sys.modules:
        states["keras"] = keras_backend.backend_state()
    return states


def accept_generator_states(states: dict[str, Any]) -> None:
    """Restore what `generator_states` returned."""
    own = states["python"]
    random.setstate((own["version"], tuple(map(int, own["numbers"])), own["ahead"]))
    np.random.set_state(states["numpy"])
    if "torch" in states and "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.set_rng_state(torch.from_numpy(np.array(states["torch"]["bytes"], np.uint8)))
    if "keras" in states and "keras" in sys.modules:
        keras_backend.accept_backend_state(states["keras"])
