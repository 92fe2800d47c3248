"""The Replica of JAX: vectors without copies, state, random keys, optimizers of optax."""

from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

import paceline
from paceline import Trainer, keep_pace
from paceline.comm import SoloWorld, run_world
from paceline.core.vectors import aligned_zeros
from paceline.data import Batch
from paceline.errors import CheckpointError, ConfigError, ReplicaError
from paceline.frameworks import Replica
from paceline.frameworks.registry import make_replica

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy
optax = pytest.importorskip("optax", reason="optax is not installed")
JaxModel = paceline.JaxModel

SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


class Layer(NamedTuple):
    kernel: np.ndarray
    bias: np.ndarray


def parameters():
    rng = np.random.default_rng(3)
    kernel = rng.normal(size=(6, 4)).astype(np.float32)
    return {"layers": [Layer(kernel, np.zeros(4, np.float32))], "scale": np.float32(0.5)}


def predict(params, inputs):
    layer = params["layers"][0]
    return (inputs @ layer.kernel + layer.bias) * params["scale"]


def cross_entropy(params, inputs, targets):
    scores = jax.nn.log_softmax(predict(params, inputs))
    return -scores[jnp.arange(len(targets)), targets].mean()


def batch_of(samples=12, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(samples, 6)).astype(np.float32)
    return Batch(inputs, rng.integers(0, 4, samples), samples, np.arange(samples))


def replica_of(model=None, optimizer=SGD):
    return make_replica(model or JaxModel(parameters(), cross_entropy), "unread", optimizer)


def train(replica, steps=3):
    losses = []
    for step in range(steps):
        losses.append(replica.gradients(batch_of(seed=step)))
        replica.apply()
    return losses


@pytest.mark.slow
def test_any_pytree_has_names_and_comes_back_as_it_was():
    model = JaxModel(parameters(), cross_entropy)
    replica = replica_of(model)
    assert isinstance(replica, Replica)
    names = [entry.name for entry in replica.layout.entries]
    assert names == ["layers.0.kernel", "layers.0.bias", "scale"]
    train(replica)
    replica.release()
    assert isinstance(model.params["layers"][0], Layer)
    kernel = replica.layout.views(replica.parameters())[0]
    assert np.array_equal(model.params["layers"][0].kernel, kernel)
    assert not np.array_equal(kernel, parameters()["layers"][0].kernel)


def test_jax_computes_on_the_memory_of_the_vector():
    replica = replica_of()
    home, gradients = (aligned_zeros(replica.layout.size, np.float32) for _ in range(2))
    replica.rehome(home, gradients)
    assert replica._alias.unsafe_buffer_pointer() == home.ctypes.data
    assert replica._gradient_alias.unsafe_buffer_pointer() == gradients.ctypes.data
    loss = replica.gradients(batch_of())
    home *= 0.5  # no accept_parameters: the vector is the model
    assert replica.gradients(batch_of()) != loss


def test_memory_that_cannot_be_shared_gives_the_same_numbers():
    odd, even = replica_of(), replica_of()
    size = odd.layout.size
    raw = np.zeros(size + 1, np.float32)[1:]  # on no cache line
    odd.rehome(raw, np.zeros(size + 1, np.float32)[1:])
    assert odd._alias is None
    assert train(odd) == train(even)
    assert raw.tobytes() == even.parameters().tobytes()


def test_accuracy_comes_from_predict():
    sums = replica_of(JaxModel(parameters(), cross_entropy, predict=predict)).evaluate(batch_of(10))
    right = np.argmax(predict(parameters(), batch_of(10).inputs), axis=1) == batch_of(10).targets
    assert (sums["correct"], sums["counted"]) == (right.sum(), 10)
    assert "correct" not in replica_of().evaluate(batch_of())


def test_bytes_are_pixels():
    inputs = np.arange(72, dtype=np.uint8).reshape(12, 6)
    targets = batch_of().targets
    scaled = Batch(inputs.astype(np.float32) / 255, targets, 12)
    replica = replica_of()
    assert replica.gradients(Batch(inputs, targets, 12)) == replica.gradients(scaled)


def stateful(params, inputs, targets, state, key, training):
    if training:
        mean = 0.9 * state["mean"] + 0.1 * inputs.mean(0)
        inputs = inputs * jax.random.bernoulli(key, 0.5, inputs.shape)
        state = {"mean": mean, "steps": state["steps"] + 1, "half": state["half"]}
    else:
        assert key is None
    return cross_entropy(params, inputs - state["mean"], targets), state


def stateful_model():
    state = {
        "mean": np.zeros(6, np.float32),
        "steps": np.int32(0),
        "half": jnp.ones(3, jnp.bfloat16),
    }
    return JaxModel(parameters(), stateful, optax.adam(1e-2), state)


def test_state_moves_in_training_alone_and_travels_as_buffers_and_constants():
    one, other = replica_of(stateful_model()), replica_of(stateful_model())
    train(one)
    moved = one.buffers().copy(), one.constants().copy()
    one.evaluate(batch_of())
    assert one.buffers().tobytes() == moved[0].tobytes()
    assert moved[1].view(np.int32) == [3]
    for hand_out, accept, values in (
        (other.buffers, other.accept_buffers, moved[0]),
        (other.constants, other.accept_constants, moved[1]),
    ):
        hand_out()[:] = values
        accept()
        assert hand_out().tobytes() == values.tobytes()
    other.parameters()[:] = one.parameters()
    assert other.evaluate(batch_of()) == one.evaluate(batch_of())


def test_a_loss_that_is_not_finite_leaves_the_state_alone():
    replica = replica_of(stateful_model())
    broken = batch_of()
    broken.inputs[0, 0] = np.nan
    assert not np.isfinite(replica.gradients(broken))
    assert not replica.constants().any()


@pytest.mark.slow
def test_keys_differ_from_step_to_step_and_follow_numpys_generator():
    def losses(seed):
        np.random.seed(seed)
        replica = replica_of(stateful_model())
        return [replica.gradients(batch_of()) for _ in range(2)]

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)
    assert losses(1)[0] != losses(1)[1]


@pytest.mark.slow
def test_an_optimizers_state_goes_through_a_checkpoint():
    one, other = replica_of(stateful_model()), replica_of(stateful_model())
    train(one)
    other.parameters()[:] = one.parameters()
    for name in ("buffers", "constants"):
        getattr(other, name)()[:] = getattr(one, name)()
        getattr(other, f"accept_{name}")()
    other.accept_optimizer_state(one.optimizer_state())
    assert other.describe_optimizer() == one.describe_optimizer()
    results = []
    for replica in (one, other):
        np.random.seed(5)
        results.append((train(replica), replica.parameters().tobytes()))
    assert results[0] == results[1]
    with pytest.raises(CheckpointError, match="optimizer that the run had"):
        replica_of().accept_optimizer_state(one.optimizer_state())


def test_parameters_in_less_precision_keep_all_of_it_in_the_vector():
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), parameters())
    replica = replica_of(JaxModel(params, cross_entropy))
    before = replica.parameters().copy()
    replica.gradients(batch_of())
    replica.scale_learning_rate(1e-4)  # a step that bfloat16 would round away
    replica.apply()
    assert replica.layout.entries[0].dtype == "bfloat16"
    assert (replica.parameters() != before).sum() > 10


def test_the_saved_file_names_each_leaf(tmp_path):
    replica = replica_of(stateful_model())
    saved = load_file(replica.save(tmp_path / "model"))
    assert saved["layers.0.kernel"].tobytes() == parameters()["layers"][0].kernel.tobytes()
    assert set(saved) == {"layers.0.kernel", "layers.0.bias", "scale"} | {
        "state.mean",
        "state.steps",
        "state.half",
    }


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (JaxModel({"a": np.zeros(2, np.int32)}, cross_entropy), "'a' is int32, and only floats"),
        (JaxModel({}, cross_entropy), "pytree is empty"),
        (JaxModel({"a.b": 1.0, "a": {"b": 2.0}}, cross_entropy), "named 'a.b'; rename a key"),
        (JaxModel(parameters(), cross_entropy, state={"mean": 0.0}), "does not take it"),
    ],
)
def test_models_that_cannot_be_trained(model, message):
    with pytest.raises(ReplicaError, match=message):
        replica_of(model)


@pytest.mark.parametrize(
    ("loss_fn", "state", "message"),
    [
        (lambda params, inputs, targets: predict(params, inputs), None, r"shape \(12, 4\)"),
        (
            lambda params, inputs, targets, state: (cross_entropy(params, inputs, targets), {}),
            {"mean": 0.0},
            "not like JaxModel.state",
        ),
    ],
)
def test_losses_that_give_something_else(loss_fn, state, message):
    with pytest.raises(ReplicaError, match=message):
        replica_of(JaxModel(parameters(), loss_fn, state=state)).gradients(batch_of())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "adm", "lr": 0.1}, "Did you mean 'adam'"),
        ({"name": "adam"}, "set optimizer.lr"),
        ({"name": "adam", "lr": 0.1, "betas": 1}, "no setting betas; it takes: lr, b1"),
    ],
)
def test_optimizers_by_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        replica_of(optimizer=settings)


def fit(model, tmp_path, world=None, **settings):
    data = batch_of(40)
    trainer = Trainer(
        model, (data.inputs, data.targets), (data.inputs, data.targets),
        world=world or SoloWorld(), progress="off", run_dir=str(tmp_path / "run"),
        data={"batch_size": 10}, **{"epochs": 2, **settings},
    )  # fmt: skip
    return trainer.fit()


@pytest.mark.slow
def test_a_model_is_trained_by_two_ranks(tmp_path):
    def program(world):
        model = JaxModel(parameters(), cross_entropy, optax.adam(0.05), predict=predict)
        result = fit(model, tmp_path, world)
        return result.history, np.asarray(result.model.params["layers"][0].kernel)

    (history, kernel), (_, other) = run_world(2, program)
    untrained = replica_of().evaluate(batch_of(40))["loss"] / 40
    assert history[1].val_loss < history[0].val_loss < untrained
    assert history[1].val_accuracy is not None
    assert kernel.tobytes() == other.tobytes()


@pytest.mark.slow
def test_a_resumed_run_equals_one_that_went_through(tmp_path):
    whole = fit(stateful_model, tmp_path / "whole")
    fit(stateful_model, tmp_path / "parts", epochs=1, checkpoint_every="epoch")
    resumed = fit(stateful_model, tmp_path / "parts", resume="auto")
    assert [r.train_loss for r in resumed.history] == [r.train_loss for r in whole.history]
    one, other = whole.model, resumed.model
    for pair in zip(*(jax.tree.leaves(m.params) for m in (one, other)), strict=True):
        assert np.array_equal(*pair)
    assert one.state["steps"] == other.state["steps"] == 8


def test_settings_of_what_the_model_brings_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="JaxModel, which has its own loss"):
        fit(JaxModel(parameters(), cross_entropy), tmp_path, loss="mse")
    with pytest.raises(ConfigError, match="JaxModel, which has its own optimizer"):
        fit(JaxModel(parameters(), cross_entropy, optax.adam(0.1)), tmp_path, optimizer="adam")
    with pytest.raises(ConfigError, match="compile cannot be set for this model"):
        fit(JaxModel(parameters(), cross_entropy), tmp_path, compile=True)


def test_keep_pace_says_what_to_use_instead():
    model = JaxModel(parameters(), cross_entropy)
    with (
        pytest.raises(ReplicaError, match=r"give the JaxModel to paceline\.Trainer"),
        keep_pace(model, None, world=SoloWorld()),
    ):
        pass
