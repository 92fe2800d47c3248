"""Callbacks of Keras in runs of the Trainer: keras_callbacks.py FOLDER.

Rank 0 prints one JSON object: by rule, what became of the run.
"""

import json
import sys
import warnings
from pathlib import Path

import keras
import numpy as np

from paceline import Trainer, init

BATCH, EPOCHS = 5, 12


def build():
    layers = [keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def make_callbacks(folder, rank, calls):
    """All five that people use, and one of their own. Nothing is ever better than at first, so
    training stops two epochs later, and each of these halves the rate."""
    kinds, never = keras.callbacks, {"monitor": "val_loss", "min_delta": 1e9}

    def note(epoch, logs):
        calls.append([epoch, sorted(logs)])

    return [
        kinds.EarlyStopping(patience=2, restore_best_weights=True, **never),
        kinds.ReduceLROnPlateau(factor=0.5, patience=1, **never),
        kinds.ModelCheckpoint(folder / f"{rank}-{{epoch}}.weights.h5", save_weights_only=True),
        kinds.CSVLogger(folder / f"{rank}.csv"),
        kinds.TensorBoard(folder / f"board-{rank}"),
        kinds.LambdaCallback(on_epoch_end=note),
    ]


def train(world, rule, folder):
    if world.rank == 0:
        folder.mkdir()
    world.barrier()
    x = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
    data, calls = (x, x[:, :1] * x[:, 1:2] + x[:, 2:3]), []
    result = Trainer(
        build, data, (data[0][:40], data[1][:40]), world=world, rule=rule, epochs=EPOCHS,
        loss="mse", optimizer={"name": "sgd", "lr": 0.04}, data={"batch_size": BATCH},
        callbacks=make_callbacks(folder, world.rank, calls), progress="off",
        run_dir=str(folder / "run"),
    ).fit()  # fmt: skip
    model = result.model
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    kept = build()
    kept.load_weights(folder / "0-1.weights.h5")
    first = np.concatenate([np.ravel(weight) for weight in kept.get_weights()])
    loaded = model.evaluate(*[part[:40] for part in data], verbose=0)
    return {
        "models": len(set(world.allgather_values(weights.tobytes()))),
        "calls": world.allgather_values(calls),
        "rates": world.allgather_values(round(float(model.optimizer.learning_rate), 6)),
        "recorded": [record.learning_rate for record in result.history],
        "epochs": len(result.history),
        "val_loss": [record.val_loss for record in result.history],
        "stopped": result.summary["stopped"],
        "files": sorted(path.name for path in folder.iterdir()),
        "from_first": float(np.abs(weights - first).max()),
        "restored": float(np.ravel(loaded)[0]),
    }


def main(folder):
    warnings.simplefilter("ignore")
    world = init()
    rules = {
        "bsp": {"name": "bsp"},
        "diloco": {"name": "diloco", "every": 4, "fragments": 2, "outer_momentum": 0.5},
        "easgd": {"name": "easgd", "every": 3},
    }
    found = {name: train(world, rule, folder / name) for name, rule in rules.items()}
    if world.rank == 0:
        print("OUTCOME", json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
