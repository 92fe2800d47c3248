"""A small network in plain numpy, for programs to which torch means nothing but a slow start."""

import numpy as np

from paceline.frameworks.numpy import NumpyReplica


def build(inputs, hidden, lr, momentum=0.0):
    """A layer of tanh and one output, trained to the least squares; the same weights every time."""
    rng = np.random.default_rng(0)

    def uniform(fan_in, *shape):
        return rng.uniform(-(fan_in**-0.5), fan_in**-0.5, shape).astype(np.float32)

    arrays = {
        "first": uniform(inputs, inputs, hidden),
        "first_bias": uniform(inputs, hidden),
        "second": uniform(hidden, hidden, 1),
        "second_bias": uniform(hidden, 1),
    }
    return NumpyReplica(arrays, loss_and_gradients, lr, momentum)


def loss_and_gradients(arrays, batch):
    hidden = np.tanh(batch.inputs @ arrays["first"] + arrays["first_bias"])
    error = hidden @ arrays["second"] + arrays["second_bias"] - batch.targets.reshape(-1, 1)
    back = 2 * error / len(error)
    into = back @ arrays["second"].T * (1 - hidden**2)
    return (error**2).mean(), {
        "first": batch.inputs.T @ into,
        "first_bias": into.sum(axis=0),
        "second": hidden.T @ back,
        "second_bias": back.sum(axis=0),
    }
