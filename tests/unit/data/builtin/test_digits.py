"""The digits that come along, and the script that draws them."""

import gzip
import hashlib
import runpy
import struct
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.data.builtin import digits, mnist
from paceline.errors import DataError

SCRIPT = Path(__file__).parents[4] / "scripts" / "make_digits.py"


@pytest.mark.parametrize(("part", "count"), [("train", 10_000), ("validation", 2_000)])
def test_digits_are_whole_and_balanced(part, count):
    source = digits.load(part)
    assert len(source) == count
    batch = source.take(np.arange(count))
    assert batch.inputs.shape == (count, 1, 28, 28)
    assert batch.inputs.dtype == np.float32
    assert batch.targets.dtype == np.int64
    assert np.bincount(batch.targets).tolist() == [count // 10] * 10
    assert abs(batch.inputs.mean()) < 0.02
    assert abs(batch.inputs.std() - 1) < 0.02


def test_digits_are_shuffled_and_no_image_is_in_both_parts():
    train, test = digits.load("train"), digits.load("validation")
    assert len(set(train.targets[:50].tolist())) == 10
    prints = {image.tobytes() for image in train.inputs}
    assert len(prints) == len(train)
    assert not prints & {image.tobytes() for image in test.inputs}


def test_images_stay_bytes_in_memory_and_need_no_prefetching():
    source = digits.load("validation")
    assert source.inputs.dtype == np.uint8
    assert source.cheap


def test_normalising_equals_torch_to_the_last_bit():
    values = np.arange(784, dtype=np.int64).astype(np.uint8).reshape(1, 28, 28)
    scaled = torch.from_numpy(values).float().div(255)
    expected = (scaled - torch.tensor(0.1307)) / torch.tensor(0.3081)
    assert np.array_equal(digits.normalise(values)[:, 0], expected.numpy())


def test_the_file_is_small_and_its_origin_noted():
    folder = resources.files("paceline.data.builtin")
    assert len(folder.joinpath("digits.npz").read_bytes()) <= 3_000_000
    text = folder.joinpath("digits.LICENSE.md").read_text()
    for word in ("LeCun", "Cortes", "Burges", "NIST", "CC BY-SA 3.0", "make_digits.py"):
        assert word in text


def test_an_unknown_part_is_refused():
    with pytest.raises(DataError, match="part is 'test', expected one of: train, validation"):
        digits.load("test")


def test_the_script_draws_each_class_equally_and_repeats_byte_for_byte(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    for stem in ("train", "t10k"):
        labels = np.repeat(np.arange(10, dtype=np.uint8), 6)
        images = random.integers(0, 256, (60, 28, 28), dtype=np.uint8)
        images[:, 0, 0] = labels
        write(tmp_path, f"{stem}-images-idx3-ubyte", images, monkeypatch)
        write(tmp_path, f"{stem}-labels-idx1-ubyte", labels, monkeypatch)
    script = runpy.run_path(str(SCRIPT))
    outs = [tmp_path / "one.npz", tmp_path / "two.npz"]
    for out in outs:
        script["write_digits"](tmp_path, out, {"train": 4, "test": 2})
    assert outs[0].read_bytes() == outs[1].read_bytes()
    with np.load(outs[0]) as arrays:
        assert np.bincount(arrays["y_train"]).tolist() == [4] * 10
        assert np.bincount(arrays["y_test"]).tolist() == [2] * 10
        assert arrays["x_train"][:, 0, 0].tolist() == arrays["y_train"].tolist()
        assert arrays["y_train"].tolist() != sorted(arrays["y_train"].tolist())
        assert len({image.tobytes() for image in arrays["x_train"]}) == 40


def write(folder: Path, stem: str, values: np.ndarray, monkeypatch) -> None:
    magic = 0x800 + values.ndim
    content = struct.pack(f">{1 + values.ndim}I", magic, *values.shape) + values.tobytes()
    (folder / f"{stem}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setitem(mnist.MD5, stem, hashlib.md5(content).hexdigest())
