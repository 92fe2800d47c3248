"""Keras' model.fit on two real ranks, on all three backends: one start of ranks for each.

In the core only what is essential, on torch.
"""

import json
from importlib.util import find_spec

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(300)

BACKENDS = ("torch", "tensorflow", "jax")
RULES = ("average", "average every step", "diloco", "easgd", "downpour", "gossip")


def fit(mpirun, folder, backend, *words):
    """By name, what became of each case on two ranks."""
    missing = [name for name in ("keras", backend) if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")
    done = mpirun(2, "keras_fit.py", folder, *words, timeout_s=280, KERAS_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("OUTCOME"))
    found = json.loads(line.removeprefix("OUTCOME"))
    for name, case in found.items():
        assert case["models"] == 1, f"{name}: the ranks end with different weights"
        assert case["histories"] == 1, f"{name}: the ranks saw different figures: {case['logs']}"
    return found


def test_fit_keeps_pace_on_torch(mpirun, tmp_path):
    found = fit(mpirun, tmp_path, "torch", "some")
    assert set(found) == {"bsp", "average", "leading", "mistakes"}
    check_mistakes(found["mistakes"])
    check_gradients(found["bsp"])
    check_rule("average", found["average"])
    check_leading(found["leading"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_fit_keeps_pace(mpirun, tmp_path, backend):
    found = fit(mpirun, tmp_path, backend)
    check_gradients(found["bsp"])
    assert found["wrapper"]["apart"] < 1e-5
    assert found["costs"]["apart"] < 1e-5
    assert found["costs"]["counts"] > 1
    for name in RULES:
        check_rule(name, found[name])
    assert len(found["uneven bsp"]["logs"]["loss"]) == 2
    assert len(found["stop in a batch"]["logs"]["loss"]) == 1
    assert len(found["stop at an epoch's end"]["logs"]["loss"]) == 2
    check_leading(found["leading"])
    check_mistakes(found["mistakes"])
    assert found["all rejected"]["finite"], "a step that all ranks reject spoils no weights"
    assert np.shape(found["classes"]["logs"]["f1"]) == (1, 3)
    assert "changed the model's weights in on_epoch_end" in found["led weights"]["error"]
    assert found["own loop"]["went"] == pytest.approx([0.45, 0.45], rel=1e-5)  # 3 * 0.1 * 1.5


def check_rule(name, case):
    assert case["seen"] == [1] * 4, f"{name}: callbacks saw the ranks' own weights"
    losses = case["logs"]["loss"]
    assert losses[-1] < losses[0], f"{name}: {losses}"


def check_gradients(case):
    """Two ranks are one rank with twice the batch, though the last batches differ in size."""
    assert case["apart"] < 1e-5
    assert case["hooked"] == [], "the model is as it was after fit"


def check_mistakes(case):
    """On rank 0, once each, and nothing of what is right."""
    assert len(case["said"]) == case["wrong"] == 2
    same, order = case["said"]
    assert "the same arrays on all 2 ranks" in same
    assert "paceline.keras.shard(x, y" in same
    assert order.startswith("TerminateOnNaN stands before KeepPace")


def check_leading(case):
    """Early stopping waits two epochs after the first, and the rate is halved after each."""
    losses = case["logs"]["val_loss"]
    assert len(losses) == 3
    assert case["calls"] == [3, 0]
    assert case["rates"] == [0.005, 0.005]
    assert case["files"] == ["0.csv", "0.weights.h5"]
    assert case["restored"] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.slow
def test_a_rank_that_ends_in_fit_ends_all(mpirun, tmp_path):
    """The others wait for it in a thread of the backend's, not where the watch looks first."""
    if find_spec("keras") is None or find_spec("jax") is None:
        pytest.skip("needs keras and jax")
    done = mpirun(2, "keras_fit.py", tmp_path, "exit", timeout_s=200, KERAS_BACKEND="jax")
    assert done.returncode != 0
    assert "rank 1" in done.stderr
