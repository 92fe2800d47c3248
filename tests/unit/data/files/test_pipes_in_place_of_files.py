"""A pipe under the name of a file is refused; to open it would be to wait for ever."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from paceline.checkpoint.store import Store
from paceline.config.reading import read_yaml
from paceline.core.regular_files import open_regular
from paceline.data import open_data
from paceline.errors import CheckpointError, ConfigError, DataError
from paceline.frameworks.model_files import read_model
from paceline.observe import EventLog

pytestmark = pytest.mark.timeout(20)
PIPE = "it is a pipe or device, expected a file"


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_only_regular_files_are_opened(tmp_path: Path, pipe: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"abc")
    with open_regular(plain) as file:
        assert file.read() == b"abc"
    with pytest.raises(OSError, match=PIPE):
        open_regular(pipe)
    with pytest.raises(OSError, match=PIPE):
        open_regular(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_a_run_file(pipe: Path) -> None:
    with pytest.raises(ConfigError, match=f"run file {pipe} cannot be read: {PIPE}"):
        read_yaml(pipe)


def test_the_events_of_a_resumed_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0000.jsonl")
    with pytest.raises(ConfigError, match=PIPE):
        EventLog(tmp_path, rank=0, node="n")


def test_an_image(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "cats").mkdir()
    os.mkfifo(tmp_path / "cats" / "one.png")
    with pytest.raises(DataError, match=rf"one\.png .*{PIPE}"):
        open_data(str(tmp_path), part="train")


def write_hdf5(path: Path, external: str | None = None, link: str | None = None) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        places = None if external is None else [(external, 0, 40)]
        file.create_dataset("x", (10,), np.float32, external=places)
        if link is None:
            file["y"] = np.arange(10)
        else:
            file["y"] = h5py.ExternalLink(link, "y")
    return str(path)


def test_the_external_storage_of_hdf5(tmp_path: Path, pipe: Path) -> None:
    with pytest.raises(DataError, match=rf"x in .*a\.h5 is made of other files.*{pipe}.*{PIPE}"):
        open_data(write_hdf5(tmp_path / "a.h5", external=str(pipe)), part="train")


def test_the_external_storage_of_hdf5_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x in .*a\.h5 is made of other files.*nowhere"):
        open_data(write_hdf5(tmp_path / "a.h5", external="nowhere"), part="train")


def test_the_external_storage_of_hdf5_that_is_there(tmp_path: Path) -> None:
    np.arange(10, dtype=np.float32).tofile(tmp_path / "raw")
    source = open_data(write_hdf5(tmp_path / "a.h5", external=str(tmp_path / "raw")), part="train")
    assert source.take(np.arange(3)).inputs.tolist() == [0.0, 1.0, 2.0]


def test_an_external_link_of_hdf5(tmp_path: Path, pipe: Path) -> None:
    with pytest.raises(DataError, match=rf"y in .*a\.h5 is made of other files.*{pipe}.*{PIPE}"):
        open_data(write_hdf5(tmp_path / "a.h5", link=str(pipe)), part="train")


def test_an_external_link_of_hdf5_that_is_there(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "b.h5")
    source = open_data(write_hdf5(tmp_path / "a.h5", link="b.h5"), part="train")
    assert source.take(np.arange(3)).targets.tolist() == [0, 1, 2]


def test_the_manifest_of_a_checkpoint(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "step-00000001").mkdir()
    os.mkfifo(tmp_path / "step-00000001" / "checkpoint.json")
    with pytest.raises(CheckpointError, match=PIPE):
        store.check("step-00000001")


def test_a_model_to_export(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=PIPE):
        read_model(tmp_path / "model.safetensors")


def test_what_is_no_pipe_is_read_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"epochs": 2}))
    assert read_yaml(path) == {"epochs": 2}
