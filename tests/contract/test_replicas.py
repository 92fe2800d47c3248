"""The contract of every Replica, as one table of frameworks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.core.vectors import aligned_zeros
from paceline.data import Batch
from paceline.frameworks import Replica
from paceline.frameworks.numpy import NumpyReplica
from paceline.frameworks.registry import make_replica


def softmax_regression(arrays, batch):
    """Mean cross-entropy and its gradient, by hand."""
    logits = batch.inputs @ arrays["weight"].T + arrays["bias"]
    logits = logits - logits.max(axis=1, keepdims=True)
    likely = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rows = np.arange(len(likely))
    loss = -np.log(likely[rows, batch.targets]).mean()
    likely[rows, batch.targets] -= 1
    likely /= len(likely)
    return loss, {"weight": likely.T @ batch.inputs, "bias": likely.sum(axis=0)}


def count_correct(arrays, batch):
    logits = batch.inputs @ arrays["weight"].T + arrays["bias"]
    return int((logits.argmax(axis=1) == batch.targets).sum())


def initial():
    rng = np.random.default_rng(3)
    return {
        "weight": rng.normal(size=(4, 6)).astype(np.float32) * 0.3,
        "bias": rng.normal(size=4).astype(np.float32) * 0.3,
    }


def numpy_replica(momentum=0.9):
    return NumpyReplica(initial(), softmax_regression, 0.1, momentum, count_correct)


def torch_replica(momentum=0.9):
    model = torch.nn.Linear(6, 4)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(initial()["weight"]))
        model.bias.copy_(torch.from_numpy(initial()["bias"]))
    return make_replica(model, "cross_entropy", {"name": "sgd", "lr": 0.1, "momentum": momentum})


def jax_replica(momentum=0.9):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    from paceline import JaxModel

    def predict(params, inputs):
        return inputs @ params["weight"].T + params["bias"]

    def loss_fn(params, inputs, targets):
        scores = jax.nn.log_softmax(predict(params, inputs))
        return -jax.numpy.take_along_axis(scores, targets[:, None], 1).mean()

    model = JaxModel(initial(), loss_fn, predict=predict)
    return make_replica(model, None, {"name": "sgd", "lr": 0.1, "momentum": momentum})


with_jax = pytest.param(jax_replica, marks=pytest.mark.slow)
every_replica = pytest.mark.parametrize("make", [numpy_replica, torch_replica, with_jax])


def batch_of(samples=12, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(samples, 6)).astype(np.float32)
    return Batch(inputs, rng.integers(0, 4, samples), samples, np.arange(samples))


def train(replica, steps=5):
    losses = []
    for step in range(steps):
        losses.append(replica.gradients(batch_of(seed=step)))
        replica.apply()
    return losses


@every_replica
def test_it_is_a_replica(make):
    assert isinstance(make(), Replica)


@pytest.mark.parametrize("make", [torch_replica, with_jax])
def test_frameworks_agree(make):
    one, other = numpy_replica(), make()
    assert train(one) == pytest.approx(train(other), rel=1e-5)
    ours = dict(zip(one.arrays, one.layout.views(one.parameters()), strict=True))
    theirs = other.layout.views(other.parameters())
    for entry, view in zip(other.layout.entries, theirs, strict=True):
        assert view == pytest.approx(ours[entry.name], abs=1e-6)


@every_replica
def test_the_parameter_vector_is_the_model(make):
    replica = make()
    before = replica.parameters().copy()
    train(replica, 1)
    assert (replica.parameters() != before).any()
    losses = train(replica, 2)
    replica.parameters()[:] = before
    replica.accept_parameters()
    assert train(replica, 2) != losses


@every_replica
def test_rehoming_keeps_values_and_moves_memory(make):
    replica, stayed = make(), make()
    train(replica, 2)
    train(stayed, 2)
    size = replica.layout.size
    home, gradients = (aligned_zeros(size, replica.layout.dtype) for _ in range(2))
    replica.rehome(home, gradients)
    assert home.tobytes() == stayed.parameters().tobytes()
    assert train(replica, 3) == train(stayed, 3)
    assert home.tobytes() == stayed.parameters().tobytes()
    replica.gradients(batch_of())
    vector, _ = replica.collect_gradients()
    assert np.shares_memory(vector, gradients)
    assert gradients.any()


@every_replica
def test_parts_of_a_batch_add_up_to_the_whole(make):
    whole, parts = make(), make()
    batch = batch_of(10)
    loss = whole.gradients(batch)
    pieces = batch.split(3)
    losses = [
        parts.gradients(piece, weight=piece.samples / 10, add=index > 0)
        for index, piece in enumerate(pieces)
    ]
    weighted = sum(value * part.samples / 10 for value, part in zip(losses, pieces, strict=True))
    assert weighted == pytest.approx(loss, rel=1e-5)
    assert parts.collect_gradients()[0] == pytest.approx(whole.collect_gradients()[0], abs=1e-6)


@every_replica
def test_gradients_start_anew_without_add(make):
    replica = make()
    replica.gradients(batch_of(seed=1))
    first = replica.collect_gradients()[0].copy()
    replica.gradients(batch_of(seed=2))
    replica.gradients(batch_of(seed=1))
    assert replica.collect_gradients()[0].tobytes() == first.tobytes()


@every_replica
def test_cleared_gradients_are_zero(make):
    replica = make()
    replica.gradients(batch_of())
    assert replica.collect_gradients()[0].any()
    replica.clear_gradients()
    assert not replica.collect_gradients()[0].any()


@every_replica
def test_what_was_written_to_the_gradient_vector_is_applied(make):
    replica = make(momentum=0.0)
    replica.gradients(batch_of())
    vector, present = replica.collect_gradients()
    vector[:] = 0.5
    before = replica.parameters().copy()
    replica.accept_gradients(present)
    replica.apply()
    moved = before - replica.parameters()
    for view in replica.layout.views(moved):
        assert view == pytest.approx(0.05, abs=1e-6)


@every_replica
def test_clipping_bounds_the_norm(make):
    replica = make()
    replica.gradients(batch_of())
    norm = np.linalg.norm(replica.collect_gradients()[0])
    replica.accept_gradients(replica.collect_gradients()[1])
    assert replica.clip(norm * 2) == pytest.approx(norm, rel=1e-5)
    assert replica.clip(norm / 4) == pytest.approx(norm, rel=1e-5)
    assert np.linalg.norm(replica.collect_gradients()[0]) == pytest.approx(norm / 4, rel=1e-4)


@every_replica
def test_the_learning_rate_scales_from_its_base(make):
    replica = make(momentum=0.0)
    start = replica.parameters().copy()
    moves = []
    for factor in (1.0, 0.5, 0.5):
        replica.parameters()[:] = start
        replica.accept_parameters()
        replica.scale_learning_rate(factor)
        replica.gradients(batch_of())
        replica.apply()
        moves.append(start - replica.parameters())
    assert moves[1] == pytest.approx(moves[0] / 2, abs=1e-7)
    assert moves[2] == pytest.approx(moves[1], abs=1e-7)
    assert replica.learning_rate == pytest.approx(0.05)


@every_replica
def test_evaluation_adds_up_over_any_split(make):
    replica = make()
    whole = replica.evaluate(batch_of(11))
    parts = [replica.evaluate(part) for part in batch_of(11).split(4)]
    for name in ("loss", "samples", "correct", "counted"):
        assert sum(part[name] for part in parts) == pytest.approx(whole[name], rel=1e-5)
    assert whole["samples"] == whole["counted"] == 11


@every_replica
def test_evaluation_changes_nothing(make):
    replica = make()
    before = replica.parameters().tobytes()
    replica.evaluate(batch_of())
    assert replica.parameters().tobytes() == before


@every_replica
def test_the_description_of_the_optimizer_follows_its_state(make):
    one, other = make(), make()
    assert one.describe_optimizer() == other.describe_optimizer()
    train(one, 1)
    assert one.describe_optimizer() != other.describe_optimizer()
    train(other, 1)
    assert one.describe_optimizer() == other.describe_optimizer()


@every_replica
def test_the_description_of_the_optimizer_names_its_settings(make):
    assert "lr=0.1" in make().describe_optimizer()
    assert make(momentum=0.5).describe_optimizer() != make().describe_optimizer()


@every_replica
def test_the_saved_model_holds_the_parameters(make, tmp_path):
    replica = make()
    train(replica, 1)
    path = replica.save(tmp_path / "model")
    if path.suffix == ".npz":
        saved = dict(np.load(path))
    else:
        from safetensors.numpy import load_file

        saved = load_file(path)
    views = replica.layout.views(replica.parameters())
    for entry, view in zip(replica.layout.entries, views, strict=True):
        assert saved[entry.name].tobytes() == view.tobytes()
