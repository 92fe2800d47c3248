"""The optimizers of a centre, against those of torch."""

import dataclasses

import numpy as np
import pytest
import torch

from paceline.core.chunks import pieces
from paceline.rules.server_optimizers import SERVER_OPTIMIZERS, make_server_optimizer

IN_TORCH = {
    "sgd": (torch.optim.SGD, {"lr": 0.3}),
    "momentum": (torch.optim.SGD, {"lr": 0.2, "momentum": 0.8}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05, "eps": 1e-5}),
    "adadelta": (torch.optim.Adadelta, {"lr": 0.7, "rho": 0.8, "eps": 1e-4}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.02, "alpha": 0.9, "eps": 1e-4}),
    "adam": (torch.optim.Adam, {"lr": 0.03, "beta1": 0.8, "beta2": 0.95, "eps": 1e-4}),
}
SIZE = 40_001
"""More than one piece."""


def in_torch(name, settings, parameter):
    settings = dict(settings)
    if "beta1" in settings:
        settings["betas"] = (settings.pop("beta1"), settings.pop("beta2"))
    return IN_TORCH[name][0]([parameter], **settings)


def defaults(name):
    kind = SERVER_OPTIMIZERS[name]
    return {field.name: field.default for field in dataclasses.fields(kind)}


def compare(name, settings, spec, dtype, tolerance):
    rng = np.random.default_rng(0)
    vector = rng.normal(size=SIZE).astype(dtype)
    parameter = torch.nn.Parameter(torch.from_numpy(vector.copy()))
    other, optimizer = in_torch(name, settings, parameter), make_server_optimizer(spec)
    state = optimizer.begin(SIZE, dtype)
    for _ in range(20):
        gradient = (rng.normal(size=SIZE) * rng.choice([1e-4, 1.0, 30.0], size=SIZE)).astype(dtype)
        parameter.grad = torch.from_numpy(gradient.copy())
        other.step()
        optimizer.step(vector, gradient, state)
        expected = parameter.detach().numpy()
        assert np.abs(vector - expected).max() <= tolerance * np.abs(expected).max()
    assert {array.dtype for array in (vector, *state.values())} == {np.dtype(dtype)}
    assert {array.size for array in state.values()} <= {1, SIZE}


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_twenty_steps_are_those_of_torch(name):
    settings = IN_TORCH[name][1]
    assert set(settings) == set(defaults(name))  # every setting takes part
    compare(name, settings, {"name": name, **settings}, np.float64, 1e-12)


def test_the_defaults():
    assert [repr(make_server_optimizer(name)) for name in SERVER_OPTIMIZERS] == [
        "SGD(lr=1.0)",
        "Momentum(lr=0.1, momentum=0.9)",
        "Adagrad(lr=0.01, eps=1e-10)",
        "Adadelta(lr=1.0, rho=0.9, eps=1e-06)",
        "RMSprop(lr=0.001, alpha=0.99, eps=1e-08)",
        "Adam(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08)",
    ]


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_the_name_alone_gives_the_defaults(name):
    compare(name, defaults(name), name, np.float64, 1e-12)


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_single_precision(name):
    compare(name, IN_TORCH[name][1], {"name": name, **IN_TORCH[name][1]}, np.float32, 1e-5)


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_any_cut_gives_the_same(name):
    rng, optimizer = np.random.default_rng(1), make_server_optimizer(name)
    whole, cuts = rng.normal(size=SIZE), [slice(0, 7), slice(7, 35_000), slice(35_000, SIZE)]
    cut, state = whole.copy(), optimizer.begin(SIZE, np.float64)
    states = [optimizer.begin(piece.stop - piece.start, np.float64) for piece in cuts]
    for _ in range(3):
        gradient = rng.normal(size=SIZE)
        for piece, own in zip(cuts, states, strict=True):
            optimizer.step(cut[piece], gradient[piece].copy(), own)
        optimizer.step(whole, gradient, state)
        assert cut.tobytes() == whole.tobytes()


def test_pieces_cover_a_vector_once():
    for size in (0, 1, 32 * 1024, 100_000):
        covered = np.zeros(size, int)
        for piece in pieces(size):
            covered[piece] += 1
        assert (covered == 1).all()
