"""The networks: as large as published, and trained in every part."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.core.user_code import load_function
from paceline.errors import ConfigError
from paceline.frameworks.torch.replica import TorchReplica
from paceline.models import MODELS
from paceline.models.googlenet import googlenet
from paceline.models.lstm import PADDING, SentenceLSTM
from paceline.models.mlp import mlp
from paceline.models.vgg import vgg

DIGITS = torch.Size([1, 28, 28])
PHOTOS = torch.Size([3, 224, 224])
KNOWN = {
    "mnist": (DIGITS, 10, 80_202),
    "mlp": (DIGITS, 10, 785 * 2048 + 2049 * 2048 + 2049 * 10),
    "lstm": (None, 2, 10_000 * 128 + 4 * 256 * (128 + 256 + 2) + 257 * 2),
    "inception": (torch.Size([3, 32, 32]), 17, 507_755),
    "alexnet": (PHOTOS, 1000, 61_100_840),
    "googlenet": (PHOTOS, 1000, 6_998_552),
    "vgg": (PHOTOS, 1000, 138_357_544),
    "resnet50": (PHOTOS, 1000, 25_557_032),
    "language_lstm": (None, 256, 745_856),
    "transformer": (None, 256, 858_880),
}
"""Shape of a sample (None: a sentence), classes, published number of parameters (those of the
language models: see test_language_models)."""
LARGE = [name for name, (shape, _, _) in KNOWN.items() if shape == PHOTOS]
EVERY_TOKEN = ("language_lstm", "transformer")
"""Models that answer for each token, not for the sentence."""


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


def build(name):
    torch.manual_seed(1)
    return load_function(MODELS[name])()


def test_every_model_is_known():
    assert set(MODELS) == set(KNOWN)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in KNOWN]
)
def test_size_shape_and_learning(name):
    """Every part gets a gradient, and a small step against it does what it promises."""
    shape, classes, parameters = KNOWN[name]
    network = build(name)
    assert count(network) == parameters
    batch = torch.rand(2, *shape) if shape else torch.randint(1, 200, (2, 12))
    length = (12,) if name in EVERY_TOKEN else ()
    targets = torch.arange(2).view(2, *(1 for _ in length)).expand(2, *length)
    logits, loss = answer(network, batch, targets)
    assert logits.shape == (2, classes, *length)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
    assert [name for name, grad in gradients.items() if grad is None or not grad.any()] == []
    square = sum(float(grad.square().sum()) for grad in gradients.values())
    promised = 0.01 * float(loss.detach())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= promised / square * parameter.grad
        _, lower = answer(network, batch, targets)
    assert 0.5 * promised < float(loss.detach() - lower) < 1.5 * promised


def answer(network, batch, targets):
    torch.manual_seed(2)  # the same units are dropped
    logits = network(batch)
    return logits, torch.nn.functional.cross_entropy(logits, targets)


def test_images_with_several_tags():
    """The loss that inception is for, by its name."""
    network = build("inception")
    replica = TorchReplica(network, "binary_crossentropy", {"name": "sgd", "lr": 0.1})
    tags = np.zeros((4, 17), np.float32)
    tags[[0, 1, 1, 2, 3], [0, 1, 2, 5, 16]] = 1
    images = np.random.default_rng(1).random((4, 3, 32, 32), np.float32)
    batch = SimpleNamespace(inputs=images, targets=tags, samples=4)
    first = replica.evaluate(batch)["loss"] / 4
    assert abs(first - math.log(2)) < 0.02
    for _ in range(10):
        replica.gradients(batch)
        replica.apply()
    assert replica.evaluate(batch)["loss"] / 4 < 0.6 * first


@pytest.mark.parametrize("size", [64, 96])
def test_resnet_takes_images_of_other_sizes(size):
    with torch.device("meta"):
        network = load_function(MODELS["resnet50"])(classes=7)
        assert network(torch.rand(2, 3, size, size)).shape == (2, 7)


@pytest.mark.parametrize("name", ["mlp", "inception", "alexnet", "googlenet", "vgg", "resnet50"])
def test_classes_can_be_chosen(name):
    with torch.device("meta"):  # shapes alone, no numbers
        network = load_function(MODELS[name])(classes=7)
        assert network(torch.rand(3, *KNOWN[name][0])).shape == (3, 7)


@pytest.mark.parametrize("name", LARGE)
def test_large_networks_have_their_published_size(name):
    with torch.device("meta"):
        assert count(load_function(MODELS[name])()) == KNOWN[name][2]


def test_the_layers_of_the_mlp_can_be_chosen():
    assert count(mlp(inputs=4, hidden=(5,), classes=3)) == 4 * 5 + 5 + 5 * 3 + 3


@pytest.mark.parametrize(("layers", "parameters"), [(11, 132_863_336), (19, 143_667_240)])
def test_other_depths_of_vgg(layers, parameters):
    with torch.device("meta"):
        assert count(vgg(layers=layers)) == parameters


def test_an_unknown_depth_is_refused():
    with pytest.raises(ConfigError, match=r"12 layers is unknown, expected one of \[11, 13, 16"):
        vgg(layers=12)


def test_padding_does_not_change_a_sentence():
    torch.manual_seed(1)
    network = SentenceLSTM(vocabulary=50)
    sentence = torch.randint(1, 50, (1, 6))
    padded = torch.cat([sentence, torch.full((1, 3), PADDING)], dim=1)
    torch.testing.assert_close(network(padded), network(sentence))
    assert not torch.allclose(network(padded[:, :5]), network(sentence))


def test_deep_networks_begin_with_activations_that_last():
    """With torch's own weights GoogLeNet's logits of a bright and a dark image differ by 2e-6."""
    torch.manual_seed(1)
    bright = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        logits = googlenet().eval()(torch.cat([bright, 0.2 * bright]))
    assert (logits[0] - logits[1]).abs().max() > 0.1
    assert logits.std() < 10


def test_the_table_in_the_docs_says_the_same():
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", page, re.MULTILINE)
    told = {name: int(count.replace(",", "")) for name, count in rows}
    assert told == {name: parameters for name, (_, _, parameters) in KNOWN.items()}
