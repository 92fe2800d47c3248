"""Every framework by every rule on the tiny problem: frameworks.py FOLDER.

Prints for each pair what came of it, as JSON. Keras has a program of its own.
"""

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import pytensor
import pytensor.tensor as pt
import tiny_problem as tiny
import torch

import paceline
from paceline.frameworks import Replica

sys.path.append(str(Path(__file__).parents[3] / "examples"))
from pytensor_replica import PyTensorReplica


def torch_module(momentum):
    first, second = torch.nn.Linear(tiny.INPUTS, tiny.HIDDEN), torch.nn.Linear(tiny.HIDDEN, 1)
    weights = {name: torch.from_numpy(array) for name, array in tiny.initial_weights().items()}
    with torch.no_grad():
        for layer, name in ((first, "first"), (second, "second")):
            layer.weight.copy_(weights[name].T)
            layer.bias.copy_(weights[f"{name}_bias"])
    return torch.nn.Sequential(first, torch.nn.Tanh(), second)


def jax_model(momentum):
    def loss_fn(params, inputs, targets):
        hidden = jnp.tanh(inputs @ params["first"] + params["first_bias"])
        found = hidden @ params["second"] + params["second_bias"]
        return ((found - targets) ** 2).mean()

    return paceline.JaxModel(tiny.initial_weights(), loss_fn)


def pytensor_replica(momentum):
    shared = {name: pytensor.shared(a, name) for name, a in tiny.initial_weights().items()}
    inputs, targets = pt.fmatrix("inputs"), pt.fmatrix("targets")
    hidden = pt.tanh(inputs @ shared["first"] + shared["first_bias"])
    loss = ((hidden @ shared["second"] + shared["second_bias"] - targets) ** 2).mean()
    variables = list(shared.values())
    return PyTensorReplica(variables, inputs, targets, loss, lr=tiny.RATE, momentum=momentum)


FRAMEWORKS = {
    "numpy": tiny.numpy_replica,
    "torch": torch_module,
    "jax": jax_model,
    "pytensor": pytensor_replica,
}


def settings_for(model, name):
    if isinstance(model, Replica):
        return {}
    settings = tiny.settings_for(name)
    return settings if isinstance(model, torch.nn.Module) else {"optimizer": settings["optimizer"]}


def main(folder):
    world = paceline.init()
    for framework, build in FRAMEWORKS.items():
        for name in tiny.RULES:
            if world.rank == 0:
                print("case:", framework, name, file=sys.stderr, flush=True)
            model = build(tiny.momentum_for(name))
            settings = settings_for(model, name)
            outcome = tiny.train(model, name, f"{folder}/{framework}", world, **settings)
            if world.rank == 0:
                print("OUTCOME", json.dumps([framework, name, outcome]), flush=True)


main(sys.argv[1])
