"""`paceline export` as a user types it."""

import subprocess
import sys

import pytest
from conftest import clean_environment


@pytest.mark.timeout(120)
def test_a_run_is_exported_and_loads_without_paceline(tmp_path, paceline):
    run = tmp_path / "run"
    trained = paceline("train", "mnist", "digits", "-n", "1", "--epochs", "1", "--run-dir", run)
    assert trained.returncode == 0, trained.stderr
    for name in ("model.pt", "model.npz", "copy.safetensors"):
        done = paceline("export", "run", name)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"wrote {name} from the finished model of run: ")
        assert done.stdout.count("\n") == 1
    check = """
import sys, numpy, torch
from safetensors.torch import load_file
expected = load_file("run/model.safetensors")
state = torch.load("model.pt", weights_only=True)
arrays = {name: torch.from_numpy(array) for name, array in numpy.load("model.npz").items()}
for found in (state, arrays, load_file("copy.safetensors")):
    assert sorted(found) == sorted(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
assert "paceline" not in sys.modules
print(sum(tensor.numel() for tensor in state.values()))
"""
    loaded = subprocess.run(
        [sys.executable, "-c", check],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert loaded.returncode == 0, loaded.stderr
    assert f": {int(loaded.stdout):,} values in " in done.stdout

    again = paceline("export", "run", "model.pt")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith("ConfigError: model.pt exists already")
    assert paceline("export", "run", "model.pt", "--force").returncode == 0
    none = paceline("export", "run", "other.pt", "--checkpoint")
    assert none.returncode == 1
    assert none.stderr.startswith("CheckpointError: run holds no sound checkpoint to export")
    assert "Traceback" not in none.stderr
