"""Keras' model.fit on many ranks.

paceline run -n 2 -- examples/keras_fit.py
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # or tensorflow, or jax

import keras

import paceline
import paceline.keras
from paceline.data import digits

world = paceline.init()
layers = keras.layers
model = keras.Sequential(
    [keras.Input((1, 28, 28)), layers.Flatten(), layers.Dense(128, "relu"), layers.Dense(10)]
)
model.compile(
    optimizer=keras.optimizers.Adam(2e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    paceline.keras.shard(digits.load("train"), batch_size=32),  # this rank's shard
    validation_data=paceline.keras.shard(digits.load("validation"), batch_size=250),
    shuffle=False,  # shard has already shuffled, with the same seed on all ranks
    epochs=5,
    verbose=2,
    callbacks=[
        paceline.keras.KeepPace(
            "average",
            every=16,
            callbacks=[keras.callbacks.EarlyStopping("val_loss", patience=2)],  # once, for all
        )
    ],
)
accuracy = history.history["val_accuracy"][-1]  # over all ranks
print(f"rank {world.rank} of {world.size}: val accuracy {accuracy:.4f}")
