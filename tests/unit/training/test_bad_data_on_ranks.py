"""Rank 0 looks into the files; ranks that see different data, or none, all hear of it."""

import re
import threading

import h5py
import numpy as np
import pytest

from paceline.comm.threads import run_world
from paceline.config.reading import read_config
from paceline.data import open as files
from paceline.data.files import open_files
from paceline.data.fingerprint import SAMPLES
from paceline.data.formats import csv_file as csv_files
from paceline.errors import ConfigError, DataError
from paceline.training.datasets import open_datasets

X, Y = np.arange(40.0).reshape(20, 2), np.arange(20)


def errors_of(ranks, data_of):
    """What each rank says when it opens its data; none may be left waiting."""

    def program(world):
        try:
            open_datasets(read_config({"data": data_of(world.rank)}), world)
        except Exception as error:
            return error
        return None

    return run_world(ranks, program)


def test_a_file_that_one_rank_has_not_is_an_error_on_all(tmp_path):
    np.savez(tmp_path / "d.npz", x=X, y=Y)
    names = [str(tmp_path / name) for name in ("d.npz", "d.npz", "gone.npz")]
    errors = errors_of(3, lambda rank: {"train": names[rank]})
    assert all(isinstance(error, DataError) for error in errors)
    for error in errors[:2]:
        assert str(error).startswith("rank 2 (threads) cannot open the training data: there is no")
        assert "gone.npz" in str(error)
    assert str(errors[2]).startswith("there is no file")


def test_validation_data_is_looked_at_as_well(tmp_path):
    names = ["digits", str(tmp_path / "gone.npy")]
    errors = errors_of(2, lambda rank: {"train": "digits", "validation": names[rank]})
    assert "rank 1 (threads) cannot open the validation data" in str(errors[0])


def test_an_error_of_settings_stays_one_and_others_are_put_in_words():
    class Odd:
        def __len__(self):
            raise KeyError("odd")

        def __getitem__(self, _):
            return 0

    errors = errors_of(2, lambda rank: {"train": "no_such_module:f" if rank else "digits"})
    assert [type(error) for error in errors] == [ConfigError, ConfigError]
    errors = errors_of(2, lambda rank: {"train": Odd() if rank else [1, 2]})
    assert "rank 1" in str(errors[0])
    assert "KeyError: 'odd'" in str(errors[0])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ((X[:9], Y[:9]), "rank 1 has 9 training samples, rank 0 has 20"),
        ((X.astype(np.float32), Y), "samples of float32 (2,), int64 (), rank 0 has float64 (2,)"),
        ((X + 1, Y), "has other training samples than rank 0"),
        ((X, Y + 1), "checksum"),
    ],
    ids=["length", "kind", "inputs", "targets"],
)
def test_data_that_differ_are_an_error_on_all(other, said):
    errors = errors_of(2, lambda rank: {"train": other if rank else (X, Y)})
    for error in errors:
        assert isinstance(error, DataError)
        assert said in str(error)
        assert "every rank must see the same data" in str(error)


def test_equal_data_pass():
    assert errors_of(3, lambda rank: {"train": (X.copy(), Y.copy())}) == [None] * 3


def test_rank_0_decides_on_the_data_of_the_mnist_model(tmp_path, monkeypatch):
    found = iter([True, False])  # on one node it is at hand, on the other not
    monkeypatch.setattr("paceline.training.datasets._is_at_hand", lambda _: next(found))
    monkeypatch.setattr("paceline.training.datasets._provide_mnist", lambda _: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    errors = errors_of(2, lambda rank: {})
    assert all("MNIST is not in" in str(error) for error in errors)


FILES = 30


def write_files(folder, suffix):
    """Many small files: where they begin and end, someone must look through each to find out."""
    folder.mkdir()
    for number in range(FILES):
        rows = np.arange(6 * number, 6 * number + 6)
        if suffix == "csv":
            text = "a,b,c\n" + "".join(f"{row},{row},{row % 2}\n" for row in rows)
            (folder / f"{number:02}.csv").write_text(text)
        else:
            with h5py.File(folder / f"{number:02}.h5", "w") as file:
                file["x"], file["y"] = np.stack([rows, rows], 1).astype(np.float32), rows % 2
    return str(folder / f"*.{suffix}")


@pytest.mark.parametrize("suffix", ["csv", "h5"])
def test_rank_0_looks_into_every_file_and_tells_the_others(tmp_path, monkeypatch, suffix):
    """The others open what they read and no more: here the samples that ranks compare."""
    looked, opened = [], {0: [], 1: [], 2: []}
    rank_here = threading.local()
    real, index = files.READERS[f".{suffix}"], csv_files.index_rows

    def open_file(path, keys, known):
        opened[rank_here.rank].append(path)
        return real(path, keys, known)

    monkeypatch.setitem(files.READERS, f".{suffix}", open_file)
    monkeypatch.setattr(csv_files, "index_rows", lambda *a: looked.append(a[0]) or index(*a))
    monkeypatch.setattr(open_files, "MOST_OPEN", 4)
    pattern = write_files(tmp_path / "data", suffix)

    def program(world):
        rank_here.rank = world.rank
        train, _ = open_datasets(read_config({"data": {"train": pattern}}), world)
        before = len(opened[world.rank])
        batch = train.take(np.arange(len(train)))
        return before, batch.inputs[:, 0].tolist(), batch.targets.tolist()

    (first, *samples), *others = run_world(3, program)
    assert first >= FILES
    assert samples[0] == list(range(6 * FILES))
    for before, *same in others:
        assert before <= SAMPLES < FILES
        assert same == samples
    if suffix == "csv":
        assert len(looked) == len(set(looked)) == FILES, "each file once, for all ranks"


@pytest.mark.parametrize("change", ["shorter", "other", "fewer"])
def test_files_that_differ_from_those_of_rank_0_are_named(tmp_path, change):
    patterns = [write_files(tmp_path / str(rank), "csv") for rank in range(2)]
    middle = tmp_path / "1" / "14.csv"
    if change == "fewer":
        middle.unlink()
        said = "names 29 files here, and 30 on rank 0"
    elif change == "shorter":
        middle.write_text("a,b,c\n1,1,1\n")
        said = r"14\.csv has 12 bytes here, and \d+ on rank 0"
    else:
        middle.write_text(middle.read_text().replace("84,84", "85,85"))
        said = r"14\.csv changed while it was trained on, or is another file than on rank 0"

    def program(world):
        config = read_config({"data": {"train": patterns[world.rank]}})
        try:
            train, _ = open_datasets(config, world)
            train.take(np.arange(len(train)))
        except DataError as error:
            return str(error)
        return None

    errors = run_world(2, program)
    assert re.search(said, errors[1])
    if change != "other":  # what only a look into the file tells is told when it is read
        assert re.search(rf"rank 1 \(threads\) cannot open the training data.*{said}", errors[0])
