"""Which arrays of a file are meant, and which files of a list."""

import builtins
import logging

import h5py
import numpy as np
import pytest

from paceline.config.reading import read_assignment, read_config
from paceline.config.run import RunConfig
from paceline.data import open_data
from paceline.data.files.keys import Keys, read_keys
from paceline.data.files.paths import read_list
from paceline.data.open import reads_keys
from paceline.errors import ConfigError, DataError

A, B = np.arange(12.0).reshape(6, 2), np.arange(6.0)
Y, Z = np.arange(6), np.eye(6, dtype=np.float32)


def hdf5(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name.replace("__", "/")] = values
    return str(path)


def take(spec, keys=None, row=2):
    return open_data(spec, part="train", keys=keys).take(np.array([row]))


@pytest.mark.parametrize(
    "names", [("x", "y"), ("X", "Y"), ("features", "labels"), ("data", "target")]
)
@pytest.mark.parametrize("kind", ["h5", "npz"])
def test_usual_names_need_not_be_said(tmp_path, names, kind):
    path = tmp_path / f"d.{kind}"
    arrays = dict(zip(names, (A, Y), strict=True))
    np.savez(path, **arrays) if kind == "npz" else hdf5(path, **arrays)
    batch = take(str(path))
    assert batch.inputs.tolist() == [[4, 5]]
    assert batch.targets.tolist() == [2]


@pytest.mark.parametrize("kind", ["h5", "npz"])
def test_every_form_of_keys(tmp_path, kind):
    path = tmp_path / f"d.{kind}"
    arrays = {"a": A, "b": B, "y": Y, "z": Z}
    np.savez(path, **arrays) if kind == "npz" else hdf5(path, **arrays)
    spec = str(path)
    assert take(spec, ["a", "z"]).targets.tolist() == [Z[2].tolist()]
    several = take(spec, [["b", "a"], ["y", "z"]])
    assert isinstance(several.inputs, tuple)
    assert [part.tolist() for part in several.inputs] == [[2], [[4, 5]]]
    assert several.targets[0].tolist() == [2]
    mapped = take(spec, [{"left": "a", "right": "b"}, {"class": "y"}])
    assert mapped.inputs["left"].tolist() == [[4, 5]]
    assert mapped.inputs["right"].tolist() == [2]
    assert mapped.targets["class"].tolist() == [2]
    assert take(spec, ["a", None]).targets is None


def test_a_group_is_many_inputs_sorted_by_name(tmp_path):
    spec = hdf5(tmp_path / "d.h5", features__second=B, features__first=A, labels=Y)
    first, second = take(spec).inputs
    assert (first.tolist(), second.tolist()) == ([[4, 5]], [2])
    named = take(spec, [{"image": "features/second"}, "labels"])
    assert named.inputs["image"].tolist() == [2]
    deep = hdf5(tmp_path / "deep.h5", x__in__a=A, y=Y)
    with pytest.raises(DataError, match=r"x in .*deep\.h5 is a group that holds the group x/in"):
        open_data(deep, part="train")


def test_names_that_are_not_there_are_told(tmp_path):
    spec = hdf5(tmp_path / "d.h5", pixels=A, kind=Y)
    with pytest.raises(DataError, match=r"d\.h5 has no .*it has: kind, pixels.*data\.keys.*tried"):
        open_data(spec, part="train")
    with pytest.raises(DataError, match=r"d\.h5 has no dataset labels; it has: kind, pixels"):
        open_data(spec, part="train", keys=["pixels", "labels"])


def test_what_is_no_array_of_numbers_is_told(tmp_path):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["x"], file["y"] = A, ["a", "b", "c", "d", "e", "f"]
    with pytest.raises(DataError, match=r"y in .*d\.h5 holds values of type object, expected num"):
        open_data(str(tmp_path / "d.h5"), part="train")
    spec = hdf5(tmp_path / "n.h5", x=3.0, y=Y)
    with pytest.raises(DataError, match=r"x in .*n\.h5 is not an array with samples"):
        open_data(spec, part="train")
    (tmp_path / "t.h5").write_text("hello")
    with pytest.raises(DataError, match=r"t\.h5 cannot be read"):
        open_data(str(tmp_path / "t.h5"), part="train")


def test_the_other_byte_order_is_turned(tmp_path):
    spec = hdf5(tmp_path / "d.h5", x=A.astype(">f4"), y=Y.astype(">i2"))
    batch = take(spec)
    assert batch.inputs.tolist() == [[4, 5]]
    assert batch.inputs.dtype.isnative
    assert batch.targets.dtype == np.dtype("=i2")


@pytest.mark.parametrize(
    "wrong",
    ["x", ["x"], ["x", "y", "z"], [None, "y"], [3, "y"], [[], "y"], [["x", 1], "y"], {"x": "y"}],
)
def test_other_forms_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"data\.keys is .*a pair \[inputs, targets\]"):
        read_keys(wrong)
    with pytest.raises(ConfigError, match=r"data\.keys is .*expected: a pair \[inputs, targets\]"):
        read_config({"data": {"keys": wrong}})


def test_keys_are_settings_that_can_be_written_and_read_again():
    level = read_assignment("data.keys=[{image: [a, b]}, null]")
    config = read_config(level)
    described = config.describe()["data"]["keys"]
    assert described == [{"image": ["a", "b"]}, None]
    assert read_keys(described) == Keys({"image": ("a", "b")}, None)
    assert RunConfig().describe()["data"]["keys"] is None


def test_which_data_has_names():
    named = ["a.h5", "a.hdf5", "a.npz", "a.parquet", "a.csv", "a.list", "a.txt", "d/*.h5"]
    assert all(map(reads_keys, named))
    assert not any(map(reads_keys, ["digits", "a.npy", "x.npy,y.npy", "a.py:f", "a.tar", "dir"]))


def test_a_missing_library_names_its_extra(tmp_path, monkeypatch):
    spec = hdf5(tmp_path / "d.h5", x=A, y=Y)
    real = builtins.__import__

    def refuse(name, *rest):
        if name == "h5py":
            raise ImportError("No module named 'h5py'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(DataError, match=r"needs h5py.*pip install 'paceline\[hdf5\]'"):
        open_data(spec, part="train")


def test_a_list_has_comments_patterns_and_its_own_folder(tmp_path, monkeypatch):
    (tmp_path / "data" / "more").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    for name in ("data/b.h5", "data/a.h5", "data/more/2.h5", "data/more/10.h5", "here/c.h5"):
        hdf5(tmp_path / name, x=A, y=Y)
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "data" / "train.list"
    path.write_text(f"\ufeff# mine\n\n  b.h5  \r\nmore/*.h5\n#a.h5\nc.h5\n{tmp_path}/data/a.h5\n")
    names = [str(file.absolute().relative_to(tmp_path)) for file in read_list(str(path))]
    assert names == ["data/b.h5", "data/more/10.h5", "data/more/2.h5", "here/c.h5", "data/a.h5"]
    assert len(open_data(str(path), part="train")) == 30


def test_the_folder_of_the_list_comes_before_the_current_one(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for folder in (tmp_path, tmp_path / "data"):
        hdf5(folder / "a.h5", x=A, y=Y)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "l.txt").write_text("a.h5\n")
    assert [file.resolve() for file in read_list("data/l.txt")] == [tmp_path / "data" / "a.h5"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# nothing\n\n", "names no file; write one per line"),
        ("\n a.h5 \ngone.h5\n", "line 3: there is no file gone.h5 in "),
        ("*.hdf5\n", "line 1: no file matches *.hdf5 in "),
        ("a.h5\nb.npz\n", "must be of one kind"),
        ("c.xyz\n", "of no known kind; expected: .h5, .hdf5, .npz"),
    ],
)
def test_what_is_wrong_with_a_list_is_told(tmp_path, text, said):
    for name in ("a.h5", "b.npz", "c.xyz"):
        (tmp_path / name).touch()
    (tmp_path / "l.list").write_text(text)
    with pytest.raises(DataError) as caught:
        open_data(str(tmp_path / "l.list"), part="train")
    assert said in str(caught.value)
    assert "l.list" in str(caught.value)


def test_a_list_that_is_no_text_and_a_file_named_twice(tmp_path, caplog):
    (tmp_path / "l.list").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"l\.list is not a list of files"):
        open_data(str(tmp_path / "l.list"), part="train")
    hdf5(tmp_path / "a.h5", x=A, y=Y)
    (tmp_path / "l.list").write_text("a.h5\n*.h5\n")
    with caplog.at_level(logging.WARNING):
        assert len(open_data(str(tmp_path / "l.list"), part="train")) == 12
    assert "names 1 file more than once" in caplog.text


def test_names_for_files_without_any_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    (tmp_path / "all.list").write_text("x.npy\n")
    with pytest.raises(DataError, match=r"lists \.npy files, which have no names"):
        open_data(str(tmp_path / "all.list"), part="train", keys=("a", "b"))
