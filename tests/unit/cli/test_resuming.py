"""`paceline train --resume` on one rank: which run goes on."""

import pytest
from support.projects import write_project

from paceline.checkpoint.store import Store

NEW = ("train", "mine.py:build", "train.npz", "-n", "1", "--epochs", "2", "--batch-size", "10")


@pytest.fixture
def project(tmp_path):
    return write_project(tmp_path)


def test_auto_goes_on_with_the_newest_run_that_is_not_done(command, project):
    words = (*NEW, "--checkpoint-every", "5")
    assert command(*words).returncode == 0
    cut = command(*words, "--max-time", "0.0001s")
    assert cut.returncode == 75, cut.stderr
    runs = sorted((project / "runs").iterdir())
    assert len(runs) == 2
    assert str(runs[-1]) in cut.stderr
    assert not (runs[-1] / "model.npz").exists()
    assert command(*words, "--resume").returncode == 0
    assert sorted((project / "runs").iterdir()) == runs
    assert (runs[-1] / "model.npz").exists()
    assert command(*words, "--resume", "auto").returncode == 0  # all are done: a new one
    assert len([*(project / "runs").iterdir()]) == 3


def test_as_many_are_kept_as_asked(command, project):
    kept = ("--checkpoint-every", "2", "--keep-checkpoints", "4", "--run-dir", "run")
    done = command(*NEW, *kept)
    assert done.returncode == 0, done.stderr
    assert len(Store(project / "run" / "checkpoints").names()) == 4


def test_a_model_after_resume_is_no_directory(command, project):
    words = ("mine.py:build", "train.npz", "-n", "1", "--epochs", "2", "--batch-size", "10")
    cut = command("train", *words, "--checkpoint-every", "5", "--max-time", "0.0001s")
    assert cut.returncode == 75, cut.stderr
    done = command("train", "--resume", *words)
    assert done.returncode == 0, done.stderr
    (run,) = (project / "runs").iterdir()
    assert (run / "model.npz").exists()


def test_a_run_that_learns_nothing_ends_with_a_warning(command, project):
    idle = "from mine import *\ndef idle():\n  return NumpyReplica(build().arrays, steady, 0.0)\n"
    idle += "def steady(arrays, batch):\n  return 1.0, {'weight': 0 * arrays['weight']}\n"
    (project / "idle.py").write_text(idle)
    done = command("train", "idle.py:idle", *NEW[2:], "--epochs", "20", "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    assert "nothing was learned; try a lower learning rate" in done.stderr.splitlines()[-1]
