"""`paceline data` as a user types it."""

from pathlib import Path

import numpy as np
import pytest
from conftest import FULL_MNIST

from paceline.cli import main
from paceline.data import digits, open_data


def test_the_digits_are_written_as_files_and_lists(tmp_path, paceline):
    h5py = pytest.importorskip("h5py")
    done = paceline("data", "mnist", "--from", "digits", "--files", "7", "here")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "wrote 7 train files and 1 test file to here; next: paceline train MODEL "
        "here/train_mnist.list here/test_mnist.list\n"
    )
    names = [f"mnist_train_{number}.h5" for number in range(7)]
    assert (tmp_path / "here/train_mnist.list").read_text().split() == names
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == sorted(
        [*names, "mnist_test_0.h5", "test_mnist.list", "train_mnist.list"]
    )
    sizes = []
    for name in names:
        with h5py.File(tmp_path / "here" / name) as file:
            assert sorted(file) == ["features", "labels"]
            assert file["features"].dtype == file["labels"].dtype == np.float32
            sizes.append(len(file["features"]))
    assert sum(sizes) == 10_000
    assert max(sizes) - min(sizes) <= 1


def test_they_hold_the_same_digits_in_the_same_order(tmp_path, paceline):
    done = paceline("data", "mnist", "--from", "digits", "--format", "npz", "--files", "3", ".")
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


def test_nothing_is_replaced_unless_asked_for(tmp_path, paceline):
    def write(*options):
        return paceline("data", "mnist", "--from", "digits", "--format", "npz", ".", *options)

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
        (("--from", "digits", "--data-dir", "x"), "ConfigError: --data-dir is read for the full"),
        (("--data-dir", "nowhere"), "DataError: MNIST is not in nowhere"),
    ],
)
def test_what_cannot_be_written_is_told_and_nothing_is_left(tmp_path, capsys, options, text):
    assert main(["data", "mnist", f"{tmp_path}/there", *options]) in (1, 2)
    assert capsys.readouterr().err.startswith(text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(FULL_MNIST is None, reason="set PACELINE_DATA to the full MNIST")
def test_the_full_set_is_written_in_24_files_and_4(tmp_path, paceline):
    done = paceline("data", "mnist", "--data-dir", FULL_MNIST, ".")
    assert done.returncode == 0, done.stderr
    lists = {name: f"{tmp_path}/{name}_mnist.list" for name in ("train", "test")}
    counts = {name: len(Path(path).read_text().split()) for name, path in lists.items()}
    assert counts == {"train": 24, "test": 4}
    sizes = {name: len(open_data(path, part="train")) for name, path in lists.items()}
    assert sizes == {"train": 60_000, "test": 10_000}
