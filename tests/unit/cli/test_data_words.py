"""`paceline data`: the files it writes, and what it refuses."""

import numpy as np
import pytest

from paceline.data import open_data
from paceline.data.builtin import digits


def test_the_files_hold_the_same_digits_in_the_same_order(tmp_path, command):
    done = command("data", "mnist", "--from", "digits", "--format", "npz", "--files", "3", ".")
    assert done.returncode == 0, done.stderr
    for part, name in (("train", "train"), ("validation", "test")):
        source, expected = open_data(f"{tmp_path}/{name}_mnist.list", part=part), digits.load(part)
        assert len(source) == len(expected)
        some = np.array([0, 1, len(source) // 2, len(source) - 1])
        batch, plain = source.take(some), expected.take(some)
        assert batch.inputs.shape == (4, 28, 28, 1)
        assert (batch.inputs.min(), batch.inputs.max()) == (0.0, 1.0)
        normal = (batch.inputs[..., 0] - digits.MEAN) / digits.DEVIATION
        assert np.array_equal(normal, plain.inputs[:, 0])
        assert batch.targets.sum(axis=1).tolist() == [1.0] * 4
        assert batch.targets.argmax(axis=1).tolist() == plain.targets.tolist()


def test_nothing_is_replaced_unless_asked_for(tmp_path, command):
    def write(*options):
        return command("data", "mnist", "--from", "digits", "--format", "npz", ".", *options)

    assert write("--files", "2").returncode == 0
    before = (tmp_path / "train_mnist.list").read_bytes()
    again = write("--files", "3")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith("ConfigError: mnist_train_0.npz and 4 more exist already")
    assert (tmp_path / "train_mnist.list").read_bytes() == before
    assert write("--files", "3", "--force").returncode == 0
    assert len((tmp_path / "train_mnist.list").read_text().split()) == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--from", "digits", "--files", "0"), "ConfigError: files is 0, expected 1 or more"),
        (("--from", "digits", "--files", "20000"), "ConfigError: 20000 train files of 10000"),
        (("--from", "digits", "--data-dir", "x"), "ConfigError: --data-dir is for the full"),
        (("--data-dir", "nowhere"), "DataError: MNIST is not in nowhere"),
    ],
)
def test_what_cannot_be_written_is_told_and_nothing_is_left(tmp_path, command, options, text):
    done = command("data", "mnist", "there", *options)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(text)
    assert list(tmp_path.iterdir()) == []
