"""The language models: their sizes, that they look back only, and that they learn."""

import pytest
import torch
from torch.nn import functional as F

from paceline.errors import ConfigError, DataError
from paceline.frameworks.torch.replica import TorchReplica
from paceline.models.language_lstm import LanguageLSTM
from paceline.models.transformer import Transformer


@pytest.fixture(autouse=True)
def one_thread():
    """On a busy machine the threads of such small steps would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(name, **settings):
    torch.manual_seed(1)
    kinds = {"lstm": LanguageLSTM, "transformer": Transformer}
    sizes = {"transformer": {"length": 16, "heads": 2}}.get(name, {})
    return kinds[name](**({"vocabulary": 11, "width": 8, "layers": 2} | sizes | settings))


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


both = pytest.mark.parametrize("name", ["lstm", "transformer"])


@pytest.mark.parametrize(
    ("vocabulary", "width", "layers"), [(10_000, 200, 2), (256, 200, 2), (7, 3, 4)]
)
def test_size_of_the_lstm(vocabulary, width, layers):
    """Per layer four gates, each with weights for input and state and, in torch, two biases."""
    with torch.device("meta"):
        network = LanguageLSTM(vocabulary, width, layers)
    gates = 4 * width * (2 * width + 2)
    assert count(network) == vocabulary * width + layers * gates + (width + 1) * vocabulary


@pytest.mark.parametrize(
    ("sizes", "parameters"),
    [((50_257, 1024, 768, 12, 12), 124_439_808), ((256, 256, 128, 4, 4), 858_880)],
    ids=["gpt-2", "as it is"],
)
def test_size_of_the_transformer(sizes, parameters):
    vocabulary, length, width, layers, _ = sizes
    with torch.device("meta"):
        network = Transformer(*sizes)
    block = 12 * width**2 + 13 * width
    assert count(network) == parameters
    assert parameters == (vocabulary + length) * width + layers * block + 2 * width


@both
def test_a_later_token_does_not_change_what_came_before(name):
    network = small(name).eval()
    tokens = torch.randint(0, 11, (2, 9))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    before, after = network(tokens), network(changed)
    assert before.shape == (2, 11, 9)
    torch.testing.assert_close(after[..., :5], before[..., :5], rtol=0, atol=0)
    assert all((after[..., at] - before[..., at]).abs().max() > 1e-6 for at in range(5, 9))


@both
def test_dropout_comes_from_the_seed_and_in_training_alone(name):
    network = small(name, dropout=0.5)
    tokens = torch.randint(0, 11, (2, 9))

    def draw(seed):
        torch.manual_seed(seed)
        return network(tokens)

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    network.eval()
    assert torch.equal(draw(3), draw(4))


@both
def test_it_learns_to_count(name):
    """Through the loss and the optimizer as `paceline train` names them."""
    network = small(name, width=32)
    replica = TorchReplica(network, "cross_entropy", {"name": "adam", "lr": 0.01})
    tokens = (torch.arange(9) + torch.arange(32)[:, None]) % 11
    batch = Samples(tokens[:, :-1], tokens[:, 1:])
    first = replica.evaluate(batch)
    assert first["counted"] == 32 * 8
    for _ in range(60):
        replica.gradients(batch)
        replica.apply()
    last = replica.evaluate(batch)
    assert last["loss"] < 0.3 * first["loss"]
    assert last["correct"] > 0.9 * last["counted"]


class Samples:
    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets
        self.samples = len(inputs)


def test_the_transformer_begins_without_a_favourite():
    torch.manual_seed(1)
    tokens = torch.randint(0, 256, (4, 64))
    loss = F.cross_entropy(Transformer().eval()(tokens), tokens.roll(-1, 1))
    assert abs(float(loss.detach()) - 5.545) < 0.2  # the logarithm of 256


@both
@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (torch.rand(2, 5), r"tokens are torch.float32, expected whole numbers; save them as int16"),
        (torch.zeros(5, dtype=torch.int64), r"shape \(5,\), expected \(n, length\)"),
        (torch.tensor([[3, 11]]), "token 11 is out of range: the model takes 0 to 10"),
        (torch.tensor([[3, -1]]), "token -1 is out of range"),
    ],
    ids=["floats", "flat", "too high", "negative"],
)
def test_wrong_tokens_are_named(name, tokens, words):
    with pytest.raises(DataError, match=words):
        small(name)(tokens)


def test_samples_that_are_too_long():
    with pytest.raises(DataError, match="17 tokens, and this transformer takes up to 16"):
        small("transformer")(torch.zeros(1, 17, dtype=torch.int64))


def test_heads_that_do_not_fit():
    with pytest.raises(ConfigError, match="width is 8 and heads 3"):
        small("transformer", heads=3)
