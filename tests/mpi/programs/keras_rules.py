"""A Keras model by every rule on the tiny problem, and what else a backend must do well.

    keras_rules.py FOLDER, with KERAS_BACKEND set

Prints for each rule what came of it, as JSON; the checks of keras_checks.py print their failures.
"""

import hashlib
import json
import sys
import traceback
from pathlib import Path

from support import tiny_problem as tiny

import paceline
from paceline.errors import Interrupted
from paceline.training.callbacks import Callback


def build():
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((tiny.INPUTS,)),
            layers.Dense(tiny.HIDDEN, activation="tanh"),
            layers.Dense(1),
        ]
    )
    model.set_weights(list(tiny.initial_weights().values()))
    return model


def build_rich():
    """Everything that a checkpoint must hold; compiled, with metrics."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((tiny.INPUTS,)),
            layers.Dense(tiny.HIDDEN, activation="tanh"),
            layers.BatchNormalization(),
            layers.GaussianNoise(0.1),
            layers.Dropout(0.2),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    metrics = ["accuracy", keras.metrics.AUC(name="auc")]
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=metrics)
    return model


class At(Callback):
    def __init__(self, step):
        self.step = step

    def on_batch_end(self, trainer, step, logs):
        if step == self.step and trainer.world.rank == 1:
            trainer.interrupt()


def signs():
    (inputs, targets), (others, wanted) = tiny.make_data()
    return (inputs, (targets[:, 0] > 0).astype("int32")), (others, (wanted[:, 0] > 0).astype(int))


def train_rich(world, folder, stop_after):
    train, validation = signs()
    trainer = paceline.Trainer(
        build_rich, train, validation, world=world, epochs=3, progress="off", resume="auto",
        run_dir=folder, callbacks=[At(stop_after)], data={"batch_size": 20},
        checkpoint_every="epoch",
    )  # fmt: skip
    try:
        return trainer, trainer.fit()
    except Interrupted:
        return trainer, None


def describe(result):
    bits = b"".join(weights.tobytes() for weights in result.model.get_weights())
    return hashlib.sha256(bits).hexdigest(), [(r.train_loss, r.val_loss) for r in result.history]


def check_resume(world, folder):
    """Interrupted and resumed is uninterrupted; metrics over ranks are those of all samples."""
    _, whole = train_rich(world, f"{folder}/whole", 0)
    assert train_rich(world, f"{folder}/cut", 9)[1] is None
    trainer, resumed = train_rich(world, f"{folder}/cut", 0)
    assert describe(resumed) == describe(whole)
    if world.rank == 0:
        inputs, targets = signs()[1]
        found = whole.model.evaluate(inputs, targets, verbose=0, return_dict=True)
        last = whole.history[-1]
        ours = {
            "loss": last.val_loss,
            "accuracy": last.val_accuracy,
            "auc": last.metrics["val_auc"],
        }
        assert all(abs(found[name] - ours[name]) < 1e-5 for name in found), (found, ours)
    check_one_sample(world, trainer.replica)


def check_one_sample(world, replica):
    """The other rank has nothing to validate on."""
    from paceline.data import as_source
    from paceline.observe import Stopwatch
    from paceline.training.loop.validation import validate

    inputs, targets = signs()[1]
    source = as_source((inputs[:1], targets[:1]))
    figures = validate(world, replica, source, 10, Stopwatch())
    assert figures["val_auc"] is not None
    assert figures["val_accuracy"] in (0.0, 1.0)
    assert len(set(map(str, world.allgather_values(figures)))) == 1


def check_export(folder):
    """Of the finished model, and of a checkpoint, in every format."""
    import keras
    import numpy as np

    from paceline.frameworks.model_files import read_model
    from paceline.training.resume.export import export_model

    run, folder = Path(folder) / "whole", Path(folder) / "exported"
    folder.mkdir()
    expected = read_model(run / "model.keras").arrays
    for name, checkpoint in (
        ("a.keras", None), ("a.npz", None), ("a.safetensors", None), ("b.npz", "newest"),
        ("b.keras", "newest"),
    ):  # fmt: skip
        told = []
        export_model(run, folder / name, checkpoint, False, told.append)
        arrays = read_model(folder / name).arrays
        assert set(arrays) == set(expected), name
        for key in arrays:
            if checkpoint is None:
                assert (arrays[key].to_numpy() == expected[key].to_numpy()).all(), (name, key)
    inputs, _ = signs()[1]
    kept = keras.saving.load_model(folder / "b.keras", safe_mode=True)
    again = np.load(folder / "b.npz")
    assert (kept.layers[0].get_weights()[0] == again["dense/kernel"]).all()
    assert np.isfinite(kept.predict(inputs, verbose=0)).all()


def run_checks(world, folder):
    """Each rank takes every second one; what failed on any of them."""
    import keras
    from support import keras_checks

    once = keras.backend.backend() == "torch"
    checks = [*keras_checks.EVERYWHERE, *(keras_checks.ONCE if once else ())]
    failed = {}
    for check in checks[world.rank :: world.size]:
        place = Path(folder) / check.__name__
        place.mkdir(parents=True)
        try:
            check(place)
        except Exception:
            failed[check.__name__] = traceback.format_exc()
    merged = {}
    for part in world.allgather_values(failed):
        merged |= part
    return {"run": [check.__name__ for check in checks], "failed": merged}


def tell(world, name, outcome):
    if world.rank == 0:
        print("OUTCOME", json.dumps([name, outcome]), flush=True)


def main(folder):
    world = paceline.init()
    for name in tiny.RULES:
        if world.rank == 0:
            print("case:", name, file=sys.stderr, flush=True)
        settings = tiny.settings_for(name)
        tell(world, name, tiny.train(build, name, f"{folder}/keras", world, **settings))
    tell(world, "checks", run_checks(world, folder))
    check_resume(world, folder)
    tell(world, "resume", True)
    if world.rank == 0:
        check_export(folder)
    world.barrier()
    tell(world, "export", True)


main(sys.argv[1])
