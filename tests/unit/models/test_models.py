"""The networks: as large as published, and trained in every part."""

import pytest
import torch

from paceline.errors import ConfigError
from paceline.functions import load_function
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
}
"""Shape of a sample (None: a sentence), classes, published number of parameters."""


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


def build(name):
    torch.manual_seed(1)
    return load_function(MODELS[name])()


def test_every_model_is_known():
    assert set(MODELS) == set(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
def test_size_shape_and_gradients(name):
    shape, classes, parameters = KNOWN[name]
    network = build(name)
    assert count(network) == parameters
    batch = torch.rand(2, *shape) if shape else torch.randint(1, 10_000, (2, 12))
    logits = network(batch)
    assert logits.shape == (2, classes)
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    dead = [
        name
        for name, parameter in network.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum() > 0
    ]
    assert dead == []


@pytest.mark.parametrize("name", ["mlp", "inception", "alexnet", "googlenet", "vgg"])
def test_classes_can_be_chosen(name):
    with torch.device("meta"):  # shapes alone, no numbers
        network = load_function(MODELS[name])(classes=7)
        assert network(torch.rand(3, *KNOWN[name][0])).shape == (3, 7)


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
