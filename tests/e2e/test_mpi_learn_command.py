"""mpi_learn's two commands, from the model file to the trained model."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.commands import PACELINE, run_program
from support.ranks import FULL_MNIST

from paceline.launch.job import Job
from paceline.launch.job_dir import shared_memory
from paceline.launch.mpirun import find_mpirun, read_machine
from paceline.launch.mpirun_command import render_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LISTS = ("data/train_mnist.list", "data/test_mnist.list")
LOSS = ("--loss", "categorical_crossentropy")


def write_data(paceline, folder, *source, files=24, kept=None):
    """The files and their lists; of the training files only the first ones are `kept`."""
    done = paceline("data", "mnist", "data", "--files", str(files), *source)
    assert done.returncode == 0, done.stderr
    names = (folder / LISTS[0]).read_text().splitlines()
    (folder / LISTS[0]).write_text("\n".join(names[:kept]) + "\n")


def read_history(folder, name):
    told = json.loads((folder / f"{name}_train_history.json").read_text())
    assert told["args"]["train_data"] == LISTS[0]
    return told["history"]["0"]


def under_mpirun(ranks, folder, *words):
    """As `mpirun -n 3 paceline ...`: nobody but MPI has started the ranks."""
    job = Job(ranks, 1, (PACELINE, *words))
    argv, extra = render_command(job, find_mpirun(), read_machine())
    with shared_memory(find_mpirun()) as place:
        given = {k: v for k, v in (place | extra).items() if not k.startswith("PACELINE_")}
        return run_program(argv, folder, 140, **given)


def test_pytorch_and_going_on(paceline, tmp_path):
    write_data(paceline, tmp_path, "--from", "digits", files=10, kept=3)
    assert paceline("mpi-learn", "build", "mnist_pytorch").returncode == 0
    words = ("mpi-learn", "mnist_pytorch_arch.torch", *LISTS, *LOSS, "--torch", "--batch", "20")
    saved = ("--checkpoint", "saved", "--monitor", "--cache-data", "cache")
    done = under_mpirun(3, tmp_path, *words, *saved, "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert "2 workers, server 2" in done.stdout
    assert done.stderr.count("--monitor is not needed") == 1
    assert read_history(tmp_path, "mnist_pytorch_arch")["val_acc"][-1] > 0.6
    done = paceline(*words, *saved, "--epochs", "3", "--restore", "saved", "-n", "3", timeout_s=140)
    assert done.returncode == 0, done.stderr
    assert "resuming" in done.stdout
    assert "3 of 3 files" in done.stderr
    assert not list((tmp_path / "cache").iterdir())
    assert len(read_history(tmp_path, "mnist_pytorch_arch")["val_acc"]) == 3


@pytest.mark.skipif(find_spec("keras") is None, reason="needs: pip install keras")
def test_keras(paceline, tmp_path):
    write_data(paceline, tmp_path, "--from", "digits", files=10, kept=2)
    assert paceline("mpi-learn", "build", "mnist").returncode == 0
    words = ("mpi-learn", "mnist_arch.json", *LISTS, *LOSS, "--batch", "20", "--easgd")
    done = paceline(*words, "--sync-every", "4", "-n", "2", "--masters", "0", KERAS_BACKEND="torch")
    assert done.returncode == 0, done.stderr
    assert read_history(tmp_path, "mnist_arch")["val_acc"][-1] > 0.6


@pytest.mark.timeout(1800)
@pytest.mark.skipif(FULL_MNIST is None, reason="set PACELINE_DATA to the full MNIST")
@pytest.mark.parametrize(("model", "flag"), [("mnist", "--tf"), ("mnist_pytorch", "--torch")])
def test_both_commands_on_the_full_set(paceline, tmp_path, model, flag):
    if flag == "--tf":
        pytest.importorskip("keras")
        if find_spec("tensorflow") is None:
            pytest.skip("needs: pip install tensorflow")
    write_data(paceline, tmp_path, "--data-dir", FULL_MNIST)
    assert paceline("mpi-learn", "build", model).returncode == 0
    name = {"mnist": "mnist_arch.json", "mnist_pytorch": "mnist_pytorch_arch.torch"}[model]
    words = ("mpi-learn", name, *LISTS, *LOSS, "--epochs", "3", flag, "-n", "3")
    done = paceline(*words, timeout_s=1700)
    assert done.returncode == 0, done.stderr
    assert read_history(tmp_path, Path(name).stem)["val_acc"][-1] >= 0.97
