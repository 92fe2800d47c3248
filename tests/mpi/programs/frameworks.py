"""Every framework by every rule on the tiny problem; Keras has a program of its own.

A framework is imported when it is trained: some take long for it.
"""

import sys
from pathlib import Path

from support import tiny_problem as tiny

import paceline


def numpy_replica(momentum, name):
    return tiny.numpy_replica(momentum), {}


def torch_module(momentum, name):
    import torch

    first, second = torch.nn.Linear(tiny.INPUTS, tiny.HIDDEN), torch.nn.Linear(tiny.HIDDEN, 1)
    weights = {name: torch.from_numpy(array) for name, array in tiny.initial_weights().items()}
    with torch.no_grad():
        for layer, part in ((first, "first"), (second, "second")):
            layer.weight.copy_(weights[part].T)
            layer.bias.copy_(weights[f"{part}_bias"])
    model = torch.nn.Sequential(first, torch.nn.Tanh(), second)
    return model, tiny.settings_for(name)


def jax_model(momentum, name):
    import jax.numpy as jnp

    def loss_fn(params, inputs, targets):
        hidden = jnp.tanh(inputs @ params["first"] + params["first_bias"])
        found = hidden @ params["second"] + params["second_bias"]
        return ((found - targets) ** 2).mean()

    optimizer = tiny.settings_for(name)["optimizer"]
    return paceline.JaxModel(tiny.initial_weights(), loss_fn), {"optimizer": optimizer}


def pytensor_replica(momentum, name):
    import pytensor
    import pytensor.tensor as pt

    sys.path.append(str(Path(__file__).parents[3] / "examples"))
    from pytensor_replica import PyTensorReplica

    shared = {name: pytensor.shared(a, name) for name, a in tiny.initial_weights().items()}
    inputs, targets = pt.fmatrix("inputs"), pt.fmatrix("targets")
    hidden = pt.tanh(inputs @ shared["first"] + shared["first_bias"])
    loss = ((hidden @ shared["second"] + shared["second_bias"] - targets) ** 2).mean()
    variables = list(shared.values())
    replica = PyTensorReplica(variables, inputs, targets, loss, lr=tiny.RATE, momentum=momentum)
    return replica, {}


FRAMEWORKS = {
    "numpy": numpy_replica,
    "torch": torch_module,
    "jax": jax_model,
    "pytensor": pytensor_replica,
}


def train(world, folder, framework, name):
    """What comes of this framework by the rule of this name."""
    model, settings = FRAMEWORKS[framework](tiny.momentum_for(name), name)
    return tiny.train(model, name, f"{folder}/{framework}", world, **settings)
