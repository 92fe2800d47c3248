"""Training without writing a loop: a model, arrays, a callback.

paceline run -n 2 -- examples/trainer.py
"""

import numpy as np
from torch import nn

import paceline


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))


class Announce(paceline.Callback):
    def on_epoch_end(self, trainer, epoch, logs):
        if trainer.world.rank == 0:
            print(f"callback: epoch {epoch} has val_accuracy {logs['val_accuracy']:.3f}")


rng = np.random.default_rng(0)
inputs = rng.normal(size=(4000, 20)).astype(np.float32)
labels = (inputs @ rng.normal(size=(20, 3))).argmax(axis=1)

result = paceline.Trainer(
    build,
    (inputs[:3000], labels[:3000]),
    (inputs[3000:], labels[3000:]),
    epochs=20,
    optimizer={"name": "adam", "lr": 3e-3},
    schedule="cosine",
    stop={"target": "val_accuracy>=0.95"},
    callbacks=[Announce()],
).fit()
if paceline.init().rank == 0:
    print(f"{result.summary['val_accuracy']:.3f} after {result.summary['epochs']} epochs")
