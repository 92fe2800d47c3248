"""`paceline data` as a user types it; more of it is in tests/unit/cli."""

from pathlib import Path

import numpy as np
import pytest
from support.ranks import FULL_MNIST

from paceline.data import open_data


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


@pytest.mark.slow
@pytest.mark.skipif(FULL_MNIST is None, reason="set PACELINE_DATA to the full MNIST")
def test_the_full_set_is_written_in_24_files_and_4(tmp_path, paceline):
    done = paceline("data", "mnist", "--data-dir", FULL_MNIST, ".")
    assert done.returncode == 0, done.stderr
    lists = {name: f"{tmp_path}/{name}_mnist.list" for name in ("train", "test")}
    counts = {name: len(Path(path).read_text().split()) for name, path in lists.items()}
    assert counts == {"train": 24, "test": 4}
    sizes = {name: len(open_data(path, part="train")) for name, path in lists.items()}
    assert sizes == {"train": 60_000, "test": 10_000}
