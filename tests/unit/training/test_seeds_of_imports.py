"""A model function that imports its framework gets the same random numbers each time."""

import sys
from types import ModuleType

import numpy as np
import pytest

from paceline.training.build import call_seeded


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_what_an_import_draws_does_not_count(monkeypatch, framework):
    """Importing JAX draws from numpy's generator; the model would begin with other numbers."""
    for name in ("jax", "torch", "keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def build():
        if framework not in sys.modules:
            np.random.rand(10)
            monkeypatch.setitem(sys.modules, framework, Framework(framework))
        return np.random.rand()

    first = call_seeded(build, 4)
    assert call_seeded(build, 4) == first


class Framework(ModuleType):
    def manual_seed(self, seed):
        """As torch has it."""
