"""Damaged and odd model files, weights and optimizer settings: one sentence that names the file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.data import open_data
from paceline.errors import ConfigError, DataError
from paceline.frameworks.registry import load_file, make_replica
from paceline.frameworks.torch.by_name import make_optimizer
from paceline.frameworks.torch.model_files import load_weights


def test_a_pt_file_with_a_broken_zip_directory(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")
    content[at : at + 4] = b"PK\xff\xff"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.pt is not what torch\.save writes"):
        load_file(path)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.zeros(2, 2), 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({0: torch.zeros(2, 2)}, "is not a state_dict"),
        ({"weight": torch.zeros(2, 2).to_sparse(), "bias": torch.zeros(2)}, "weight .*sparse"),
        ({"weight": torch.zeros(2, 2, device="meta"), "bias": torch.zeros(2)}, "weight .*meta"),
        ({"weight": quantized(), "bias": torch.zeros(2)}, "weight .*qint8"),
        ({"weight": torch.zeros(2, 2) + 1j, "bias": torch.zeros(2)}, "weight .*complex64"),
    ],
)
def test_weights_that_no_model_can_begin_with(tmp_path: Path, content: Any, words: str) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=rf"w\.pt .*{words}"):
        load_weights(torch.nn.Linear(2, 2), str(tmp_path / "w.pt"))


def test_weights_with_a_name_that_no_file_can_have() -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        load_weights(torch.nn.Linear(2, 2), "w" * 5000)


def test_an_architecture_that_is_not_utf_8(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    path = tmp_path / "arch.json"
    path.write_bytes(b'{"class_name": "\xff"}')
    with pytest.raises(ConfigError, match=r"arch\.json is not JSON"):
        load_file(path)
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(ConfigError, match=r"arch\.json is not JSON"):
        load_file(path)


def test_a_keras_file_with_a_flipped_byte(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    path = tmp_path / "model.keras"
    keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2)]).save(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        path.write_bytes(damaged)
        with suppress(ConfigError):  # a byte of no weight may still be read
            load_file(path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"betas": [0.9]}, r"betas is \[0\.9\], expected 2 numbers"),
        ({"betas": [0.9, 0.99, 0.999]}, ".*expected 2 numbers"),
        ({"betas": [0.9, True]}, ".*expected 2 numbers"),
        ({"betas": 0.9}, "betas is 0.9, expected 2 numbers"),
        ({"eps": "small"}, "eps is 'small', expected a number"),
        ({"weight_decay": True}, "weight_decay is True, expected a number"),
        ({"amsgrad": 3}, "amsgrad is 3, expected true or false"),
    ],
)
def test_settings_of_an_optimizer_have_the_kind_of_its_own(settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"optimizer adam: {words}"):
        make_optimizer({"name": "adam", **settings}, torch.nn.Linear(2, 2).parameters())


def test_a_rate_may_be_a_tensor() -> None:
    made = make_optimizer(
        {"name": "adam", "lr": torch.tensor(0.1), "betas": (0.5, 0.9)},
        [torch.nn.Parameter(torch.zeros(2))],
    )
    assert made.defaults["betas"] == (0.5, 0.9)


def test_long_doubles_are_refused_when_they_are_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 2), np.longdouble), y=np.zeros(4, int))
    with pytest.raises(DataError, match=r"x in .*d\.npz holds .*float128.*float32 or float64"):
        open_data(str(tmp_path / "d.npz"), part="train")


class Batch:
    samples = 4
    indices = None

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.inputs, self.targets = inputs, targets


@pytest.mark.parametrize("kind", ["inputs", "targets"])
def test_complex_numbers_in_a_model_of_floats(kind: str) -> None:
    replica = make_replica(torch.nn.Linear(2, 2), "cross_entropy", {"name": "sgd", "lr": 0.1})
    arrays = {"inputs": np.zeros((4, 2), np.float32), "targets": np.zeros(4, np.int64)}
    arrays[kind] = arrays[kind].astype(np.complex64)
    with pytest.raises(DataError, match=r"complex64.*float32"):
        replica.gradients(Batch(**arrays))  # type: ignore[arg-type]


def test_a_long_double_from_python_is_refused() -> None:
    replica = make_replica(torch.nn.Linear(2, 2), "cross_entropy", {"name": "sgd", "lr": 0.1})
    batch = Batch(np.zeros((4, 2), np.longdouble), np.zeros(4, np.int64))
    with pytest.raises(DataError, match="arrays of float128 cannot be trained on"):
        replica.gradients(batch)  # type: ignore[arg-type]
