"""What a Keras replica must do on every backend, and what only one needs to show.

Each function checks one thing in its own process; the numbers in them are by hand or by Keras.
"""

import logging
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

from paceline.data import Batch
from paceline.errors import ConfigError, DataError, ReplicaError
from paceline.frameworks.keras.backend import without_tensorflow
from paceline.frameworks.keras.saving import describe_architecture
from paceline.frameworks.random_state import (
    accept_generator_states,
    generator_states,
    seed_generators,
)
from paceline.frameworks.registry import load_file, make_replica

layers = keras.layers
ADAM = {"name": "adam", "lr": 0.01}
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def data(samples=12, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(samples, 4)).astype(np.float32)
    return Batch(inputs, rng.integers(0, classes, samples), samples, np.arange(samples) + 100)


def rich(last="softmax"):
    """All kinds of variables: trained, statistics, seeds."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(6, activation="relu"),
            layers.BatchNormalization(),
            layers.GaussianNoise(0.1),
            layers.Dropout(0.3),
            layers.Dense(3, activation=last),
        ]
    )


def plain(last="softmax", **details):
    seed_generators(5)
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, activation=last, **details)])


def steps(replica, count, first=0):
    for step in range(first, first + count):
        replica.gradients(data(seed=step))
        replica.apply()
    return replica.parameters().tobytes() + replica.buffers().tobytes()


def cross_entropies_agree(folder):
    batch, wanted = data(), None
    one_hot = Batch(batch.inputs, np.eye(3, dtype=np.float32)[batch.targets], 12)
    column = Batch(batch.inputs, batch.targets[:, None], 12)
    for last, loss, given in (
        ("softmax", "cross_entropy", batch),
        ("linear", "categorical_crossentropy", one_hot),
        ("softmax", "cross_entropy", one_hot),
        ("linear", "cross_entropy", column),
    ):
        replica = make_replica(plain(last), loss, SGD)
        found = replica.gradients(given), replica.evaluate(given)["correct"]
        wanted = wanted or found
        assert found == pytest.approx(wanted, rel=1e-5)
    kernel, bias = (np.asarray(keras.ops.convert_to_numpy(w)) for w in replica.model.weights)
    logits = batch.inputs @ kernel + bias
    likely = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert wanted[0] == pytest.approx(-np.log(likely[np.arange(12), batch.targets]).mean(), 1e-5)
    assert wanted[1] == (logits.argmax(1) == batch.targets).sum()


def parts_add_up(folder):
    whole, parts = (make_replica(plain(), "cross_entropy", SGD) for _ in range(2))
    batch = data(10)
    whole.gradients(batch)
    for at, piece in enumerate(batch.split(3)):
        parts.gradients(piece, weight=piece.samples / 10, add=at > 0)
    assert parts.collect_gradients()[0] == pytest.approx(whole.collect_gradients()[0], abs=1e-6)
    norm = float(np.linalg.norm(whole.collect_gradients()[0]))
    assert whole.clip(norm / 2) == pytest.approx(norm, rel=1e-5)
    assert np.linalg.norm(whole.collect_gradients()[0]) == pytest.approx(norm / 2, rel=1e-5)


def state_goes_on_bit_for_bit(folder):
    seed_generators(3)
    replica = make_replica(rich(), "cross_entropy", ADAM)
    replica.reseed(77)
    steps(replica, 3)
    vectors = [v.copy() for v in (replica.parameters(), replica.buffers(), replica.constants())]
    optimizer, generators = replica.optimizer_state(), generator_states()
    uninterrupted = steps(replica, 3, first=3)
    seed_generators(4)
    other = make_replica(rich(), "cross_entropy", ADAM)
    other.reseed(77)
    for hand_out, accept, values in (
        (other.parameters, other.accept_parameters, vectors[0]),
        (other.buffers, other.accept_buffers, vectors[1]),
        (other.constants, other.accept_constants, vectors[2]),
    ):
        hand_out()[:] = values
        accept()
    other.accept_optimizer_state(optimizer)
    accept_generator_states(generators)
    assert steps(other, 3, first=3) == uninterrupted
    other.reset_optimizer()
    fresh = make_replica(rich(), "cross_entropy", ADAM)
    assert other.describe_optimizer() == fresh.describe_optimizer()


def seeds_differ_by_key(folder):
    def noise(key):
        seed_generators(9)
        model = keras.Sequential([keras.Input((4,)), layers.GaussianNoise(1.0), layers.Dense(3)])
        replica = make_replica(model, "cross_entropy", SGD)
        replica.reseed(key)
        return replica.constants().tobytes(), replica.gradients(data())

    (first, one), (second, other), (third, again) = noise(0), noise(12345), noise(12345)
    assert first == second == third
    assert one != other == again


def several_inputs_and_outputs(folder):
    one, two = keras.Input((2,), name="one"), keras.Input((2,), name="two")
    joined = layers.Dense(5, activation="relu")(layers.Concatenate()([one, two]))
    sort = layers.Dense(3, activation="softmax", name="sort")(joined)
    size = layers.Dense(1, name="size")(joined)
    batch = data(30)
    inputs = {"one": batch.inputs[:, :2], "two": batch.inputs[:, 2:]}
    targets = {"sort": batch.targets, "size": batch.inputs.sum(1)}
    losses = {"sort": "cross_entropy", "size": "mse"}
    for outputs in ([sort, size], {"sort": sort, "size": size}):
        model = keras.Model([one, two], outputs)
        replica = make_replica(model, losses, SGD)
        named = Batch(inputs, targets, 30)
        listed = Batch((inputs["one"], inputs["two"]), targets, 30)
        if isinstance(outputs, list):
            listed.targets = (targets["sort"], targets["size"])
        loss = replica.gradients(named)
        assert replica.gradients(listed) == pytest.approx(loss, rel=1e-5)
        replica.apply()
        assert replica.gradients(named) < loss
        sums = add_up(replica, named.split(2))
        figures = replica.figures(sums)
        total = sums["loss"] / sums["samples"]
        assert figures["sort_loss"] + figures["size_loss"] == pytest.approx(total, rel=1e-4)


def add_up(replica, batches):
    sums = {}
    for batch in batches:
        for name, value in replica.evaluate(batch).items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def compiled_models_keep_what_they_have(folder):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, activation="sigmoid")])
    metrics = [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision"), "mae"]
    model.compile(keras.optimizers.RMSprop(0.02), "binary_crossentropy", metrics=metrics)
    replica = make_replica(model, None, None)
    assert type(replica.optimizer).__name__ == "RMSprop"
    batch = data(50, classes=2)
    loss = replica.gradients(batch)
    replica.apply()
    sums = add_up(replica, batch.split(3))
    found = {"loss": sums["loss"] / sums["samples"], **replica.figures(sums)}
    wanted = model.evaluate(batch.inputs, batch.targets, verbose=0, return_dict=True)
    assert found == pytest.approx(wanted, rel=1e-4)
    assert found["loss"] < loss
    changed = make_replica(model, None, SGD)
    changed.gradients(batch)
    assert type(model.optimizer).__name__ == "SGD"
    assert "auc" in changed.figures(add_up(changed, [batch]))


def frozen_layers_stay(folder):
    model = rich()
    model.layers[0].trainable = False
    replica = make_replica(model, "cross_entropy", SGD)
    names = [entry.name for entry in replica.layout.entries]
    assert names == [
        "batch_normalization/gamma", "batch_normalization/beta", "dense_1/kernel", "dense_1/bias",
    ]  # fmt: skip
    rows = {row[1]: row[0] for row in replica.locate_variables()}
    assert rows["dense/kernel"] == "constants"
    assert rows["batch_normalization/moving_mean"] == "buffers"
    frozen = np.array(model.layers[0].get_weights()[0])
    moving = replica.buffers().copy()
    steps(replica, 2)
    assert (model.layers[0].get_weights()[0] == frozen).all()
    assert (replica.buffers() != moving).any()


def regularizers_count(folder):
    replica = make_replica(plain(kernel_regularizer="l2"), "cross_entropy", SGD)
    bare = make_replica(plain(), "cross_entropy", SGD)
    kernel = np.asarray(bare.model.get_weights()[0])
    extra = 0.01 * (kernel**2).sum()
    assert replica.gradients(data()) == pytest.approx(bare.gradients(data()) + extra, rel=1e-4)
    assert replica.evaluate(data())["loss"] == pytest.approx(
        bare.evaluate(data())["loss"] + 12 * extra, rel=1e-4
    )


def learning_rates_follow(folder):
    replica = make_replica(plain(), "cross_entropy", {"name": "sgd", "lr": 0.5})
    replica.scale_learning_rate(0.5)
    assert replica.learning_rate == pytest.approx(0.25)
    replica.optimizer.learning_rate = 0.125  # as a callback does: half of what it was
    replica.scale_learning_rate(0.5)
    assert replica.learning_rate == pytest.approx(0.125)
    replica.scale_learning_rate(1.0)
    assert replica.learning_rate == pytest.approx(0.25)
    saved = replica.optimizer_state()
    other = make_replica(plain(), "cross_entropy", {"name": "sgd", "lr": 0.5})
    other.accept_optimizer_state(saved)
    other.scale_learning_rate(0.5)
    assert other.learning_rate == pytest.approx(0.125)
    decay = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    replica = make_replica(plain(), "cross_entropy", lambda _: keras.optimizers.SGD(decay))
    steps(replica, 2)
    assert replica.learning_rate == pytest.approx(0.125)
    with pytest.raises(ConfigError, match="its own learning rate schedule"):
        replica.scale_learning_rate(0.5)


def metrics_that_do_not_add_up_are_left_out(folder):
    class Largest(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="largest")
            self.seen = self.add_variable((), "zeros", name="seen")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.seen.assign(keras.ops.maximum(self.seen, keras.ops.max(y_pred)))

        def result(self):
            return self.seen * 1.0

    model = plain()
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[Largest(), "accuracy"])
    replica = make_replica(model, None, None)
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("paceline.frameworks").addHandler(handler)
    figures = replica.figures(add_up(replica, [data()]))
    logging.getLogger("paceline.frameworks").removeHandler(handler)
    assert set(figures) == {"accuracy"}
    assert [text for text in told if "largest" in text]


def bytes_are_pixels_where_they_are(folder):
    pixels = np.random.default_rng(1).integers(0, 256, (5, 1, 4, 4), np.uint8)
    batch = Batch(pixels, np.arange(5) % 3, 5)

    def loss(*first):
        seed_generators(2)
        stack = [keras.Input((4, 4, 1)), *first, layers.Flatten(), layers.Dense(3)]
        return make_replica(keras.Sequential(stack), "cross_entropy", SGD).gradients(batch)

    assert loss() == pytest.approx(loss(layers.Rescaling(1 / 255)), rel=1e-5)
    seed_generators(2)
    words = keras.Sequential(
        [keras.Input((4,)), layers.Embedding(256, 3), layers.Flatten(), layers.Dense(3)]
    )
    tokens = pixels[:, 0, 0]
    replica = make_replica(words, "cross_entropy", SGD)
    whole = replica.gradients(Batch(tokens, batch.targets, 5))
    assert whole == replica.gradients(Batch(tokens.astype(np.int64), batch.targets, 5))


def files_are_safe(folder):
    folder = Path(folder)
    replica = make_replica(rich(), "cross_entropy", ADAM)
    steps(replica, 2)
    path = replica.save(folder / "model")
    assert path == folder / "model.keras"
    again = make_replica(load_file(path), None, None)
    batch = data(20)
    assert again.evaluate(batch)["loss"] == pytest.approx(replica.evaluate(batch)["loss"], rel=1e-6)
    assert again.describe_optimizer() == replica.describe_optimizer()
    fresh = plain()
    fresh.compile("adam", "sparse_categorical_crossentropy")
    with without_tensorflow():
        fresh.save(folder / "fresh.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of an optimizer that has not yet anything to load
        load_file(folder / "fresh.keras")
    architecture = folder / "arch.json"
    architecture.write_text(describe_architecture(replica.model))
    assert load_file(architecture).count_params() == replica.model.count_params()
    code = layers.Lambda(lambda x: x * 2, output_shape=(4,))
    with without_tensorflow():
        keras.Sequential([keras.Input((4,)), code, layers.Dense(2)]).save(folder / "code.keras")
    with pytest.raises(ConfigError, match=r"Python code .*file.py:function"):
        load_file(folder / "code.keras")

    class Own(layers.Dense):
        pass

    with without_tensorflow():
        keras.Sequential([keras.Input((4,)), Own(2)]).save(folder / "own.keras")
    with pytest.raises(ConfigError, match=r"has Own, which Keras does not have.*file.py:function"):
        load_file(folder / "own.keras")
    for name, text, why in (
        ("bad.keras", "no zip", "not a zip archive"),
        ("bad.json", "{", "not JSON"),
        ("other.json", '{"a": 1}', "no class_name"),
        ("old.h5", "x", "old HDF5 format"),
    ):
        (folder / name).write_text(text)
        with pytest.raises(ConfigError, match=why):
            load_file(folder / name)


def wrong_things_are_named(folder):
    class Own(keras.Sequential):
        def train_step(self, *data):
            return {}

    for build, why in (
        (lambda: Own([keras.Input((4,)), layers.Dense(2)]), "its own train_step"),
        (lambda: keras.Sequential([layers.Dense(2)]), "no variables yet"),
        (lambda: keras.Sequential([keras.Input((4,)), layers.Flatten()]), "nothing|no variable"),
    ):
        with pytest.raises(ReplicaError, match=why):
            make_replica(build(), "mse", SGD)
    for optimizer, why in (
        ({"name": "adm"}, "Did you mean 'adam"),
        ({"name": "adam", "momentum": 0.9}, "no setting momentum; it takes: lr, beta_1"),
        (lambda _: 3, "is a int, and a Keras model needs"),
    ):
        with pytest.raises(ConfigError, match=why):
            make_replica(plain(), "mse", optimizer)
    with pytest.raises(ReplicaError, match="use_ema"):
        make_replica(plain(), "mse", {"name": "adam", "use_ema": True})
    with pytest.raises(ConfigError, match="loss is 'crosentropy', expected one of: cross_entropy"):
        make_replica(plain(), "crosentropy", SGD).gradients(data())
    wrong = data()
    wrong.targets[7] = 3
    replica = make_replica(plain(), "cross_entropy", SGD)
    with pytest.raises(DataError, match=r"label 3 of sample 107 is out of range.* from 0 to 2"):
        replica.gradients(wrong)
    with pytest.raises(DataError, match="no targets"):
        replica.gradients(Batch(wrong.inputs, None, 12))
    five = Batch(wrong.inputs, np.eye(5, dtype=np.float32)[wrong.targets], 12)
    for loss, batch, why in (
        ("cross_entropy", five, r"targets of shape \(5,\).* outputs of shape \(3,\)"),
        (keras.losses.CategoricalCrossentropy(), five, "3 columns"),
        (keras.losses.CategoricalCrossentropy(), data(), "sparse_categorical_crossentropy"),
        (keras.losses.SparseCategoricalCrossentropy(), five, "a class from 0 to 2"),
    ):
        with pytest.raises(DataError, match=why):
            make_replica(plain(), loss, SGD).gradients(batch)


EVERYWHERE = (
    parts_add_up, state_goes_on_bit_for_bit, seeds_differ_by_key,
    several_inputs_and_outputs, compiled_models_keep_what_they_have, frozen_layers_stay,
    regularizers_count,
)  # fmt: skip
ONCE = (
    cross_entropies_agree,
    learning_rates_follow, metrics_that_do_not_add_up_are_left_out, files_are_safe,
    bytes_are_pixels_where_they_are, wrong_things_are_named,
)  # fmt: skip
