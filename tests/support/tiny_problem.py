"""One tiny problem for every framework: data, a network of two layers, and weights to begin with.

The network is `tanh(x @ first + first_bias) @ second + second_bias`, its loss the mean square.
Everything is plain numpy and float32, so that a program may use any one framework beside it.
"""

import numpy as np

from paceline import Trainer
from paceline.frameworks.numpy import NumpyReplica

INPUTS, HIDDEN, SAMPLES, BATCH, EPOCHS, RATE = 6, 8, 250, 10, 4, 0.05
"""250 samples in steps of 2 x 10: the last step of an epoch has 2 x 5."""

SYNCHRONOUS = {
    "bsp": {"name": "bsp"},
    "average every step": {"name": "average", "every": 1},
    "average": {"name": "average", "every": 3},
    "diloco": {"name": "diloco", "every": 4, "outer_momentum": 0.5},
    "synchronous easgd": {"name": "easgd", "every": 2, "synchronous": True},
    "synchronous downpour": {"name": "downpour", "synchronous": True},
}
"""Ranks exchange in the same steps: each course can be told in advance."""
FREE = {
    "easgd": {"name": "easgd", "every": 2},
    "downpour": {"name": "downpour", "push_every": 2, "pull_every": 2, "staleness": "agn"},
    "gossip": {"name": "gossip", "probability": 0.5},
}
"""Ranks are asynchronous: no two courses are alike, but each must arrive."""
RULES = SYNCHRONOUS | FREE


def momentum_for(name):
    """Of the optimizer under this rule; on stale pushes momentum diverges."""
    return 0.0 if "downpour" in name else 0.9


def make_data():
    """Inputs and targets to train on, and the same to validate on."""
    rng = np.random.default_rng(7)
    inputs = rng.normal(size=(SAMPLES + 50, INPUTS)).astype(np.float32)
    targets = np.sin(inputs[:, :1]) - inputs[:, 1:2] * inputs[:, 2:3] / 2
    return (inputs[:SAMPLES], targets[:SAMPLES]), (inputs[SAMPLES:], targets[SAMPLES:])


def initial_weights():
    """By name, in this order; a matrix has a row for each input."""
    rng = np.random.default_rng(3)
    shapes = {
        "first": (INPUTS, HIDDEN),
        "first_bias": (HIDDEN,),
        "second": (HIDDEN, 1),
        "second_bias": (1,),
    }
    return {name: (rng.normal(size=s) * 0.4).astype(np.float32) for name, s in shapes.items()}


def loss_and_gradients(arrays, batch):
    """The mean loss and its gradient, by hand."""
    hidden = np.tanh(batch.inputs @ arrays["first"] + arrays["first_bias"])
    error = hidden @ arrays["second"] + arrays["second_bias"] - batch.targets
    back = 2 * error / len(error)
    into = back @ arrays["second"].T * (1 - hidden**2)
    return (error**2).mean(), {
        "first": batch.inputs.T @ into,
        "first_bias": into.sum(axis=0),
        "second": hidden.T @ back,
        "second_bias": back.sum(axis=0),
    }


def numpy_replica(momentum):
    """The course that all others are compared with."""
    return NumpyReplica(initial_weights(), loss_and_gradients, RATE, momentum)


def train(model, name, folder, world, **settings):
    """Train by the rule of this name. A model that is no Replica gets loss and optimizer from
    `settings_for`. Returns the losses of every epoch, and whether all ranks got the same model."""
    train, validation = make_data()
    trainer = Trainer(
        model, train, validation, world=world, rule=RULES[name], epochs=EPOCHS, progress="off",
        data={"batch_size": BATCH}, run_dir=f"{folder}/{name}", **settings,
    )  # fmt: skip
    result = trainer.fit()
    hashes = world.allgather_values(trainer.replica.parameters().tobytes())
    return {
        "losses": [record.train_loss for record in result.history],
        "val_losses": [record.val_loss for record in result.history],
        "equal": len(set(hashes)) == 1,
    }


def settings_for(name):
    """Loss and optimizer, for models that do not bring their own."""
    optimizer = {"name": "sgd", "lr": RATE, "momentum": momentum_for(name)}
    return {"loss": "mse", "optimizer": optimizer}
