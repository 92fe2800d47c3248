"""`paceline export` as a user types it, of the run that the demo has left."""

import re
import sys

import pytest
from support.commands import run_program

from paceline.cli import main

LOAD = """
import sys, numpy
from safetensors.numpy import load_file
expected = load_file(sys.argv[1])
for found in (dict(numpy.load("model.npz")), load_file("copy.safetensors")):
    assert sorted(found) == sorted(expected)
    assert all(numpy.array_equal(found[name], expected[name]) for name in expected)
assert "paceline" not in sys.modules
print(sum(array.size for array in expected.values()))
"""

LOAD_BY_TORCH = """
import sys, torch
from safetensors.torch import load_file
expected = load_file(sys.argv[1])
found = torch.load("model.pt", weights_only=True)
assert sorted(found) == sorted(expected)
assert all(torch.equal(found[name], expected[name]) for name in expected)
assert "paceline" not in sys.modules
print(sum(tensor.numel() for tensor in found.values()))
"""


@pytest.fixture
def run(demo):
    """The directory of the run."""
    folder, done = demo
    return folder / re.search(r"run directory: (\S+)", done.stdout)[1]


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (("model.npz", "copy.safetensors"), LOAD),
        pytest.param(("model.pt",), LOAD_BY_TORCH, marks=pytest.mark.slow),
    ],
    ids=["for numpy", "for torch"],
)
def test_a_run_is_exported_and_loads_without_paceline(tmp_path, paceline, run, names, code):
    for name in names:
        done = paceline("export", run, name)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"wrote {name} from the finished model of {run}: ")
        assert done.stdout.count("\n") == 1
    loaded = run_program([sys.executable, "-c", code, run / "model.safetensors"], tmp_path)
    assert loaded.returncode == 0, loaded.stderr
    assert f": {int(loaded.stdout):,} values in " in done.stdout


def test_what_cannot_be_exported_is_told(tmp_path, run, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.npz").write_text("mine")
    assert main(["export", str(run), "model.npz"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("ConfigError: model.npz exists already")
    assert (tmp_path / "model.npz").read_text() == "mine"
    assert main(["export", str(run), "model.npz", "--force"]) == 0
    assert (tmp_path / "model.npz").read_bytes().startswith(b"PK")
    capsys.readouterr()
    assert main(["export", str(run), "other.npz", "--checkpoint"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"CheckpointError: {run} holds no sound checkpoint to export")
