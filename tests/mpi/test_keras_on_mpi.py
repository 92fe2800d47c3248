"""Keras on its three backends: every rule on 2 ranks, against numpy on the same tiny problem."""

import json
import re
from importlib.util import find_spec

import pytest
from support import tiny_problem as tiny

from paceline.comm.threads import run_world

BACKENDS = ("torch", "jax", "tensorflow")
SLOW_S = 300
"""A busy machine imports three frameworks at once."""


@pytest.fixture(scope="module")
def by_numpy(tmp_path_factory):
    """The losses of every epoch by each synchronous rule, on two ranks that are threads."""
    folder = tmp_path_factory.mktemp("numpy")

    def program(world):
        return {
            name: tiny.train(tiny.numpy_replica(tiny.momentum_for(name)), name, str(folder), world)
            for name in tiny.SYNCHRONOUS
        }

    return run_world(2, program)[0]


@pytest.mark.slow
@pytest.mark.timeout(SLOW_S)
@pytest.mark.parametrize("backend", BACKENDS)
def test_keras_by_every_rule(backend, mpirun, by_numpy, tmp_path):
    missing = [name for name in ("keras", backend) if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "KERAS_BACKEND": backend}
    quick |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")}
    quick |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = mpirun(2, "keras_rules.py", tmp_path, timeout_s=SLOW_S, **quick)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = dict(json.loads(text) for text in re.findall(r"OUTCOME (.*)", done.stdout))
    assert f"on {backend}" in done.stderr
    for name, wanted in by_numpy.items():
        found = outcomes[name]
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-4), name
        assert found["val_losses"] == pytest.approx(wanted["val_losses"], rel=1e-4), name
        assert found["equal"], name
    for name in tiny.FREE:
        assert outcomes[name]["equal"], name
        assert outcomes[name]["val_losses"][-1] < 0.6, name
    assert outcomes["checks"]["run"]
    assert not outcomes["checks"]["failed"], "\n".join(outcomes["checks"]["failed"].values())
    assert outcomes["resume"]
    assert outcomes["export"]
