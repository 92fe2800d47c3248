from pathlib import Path

from paceline.observe.trial import TRIAL
from paceline.training.rundir import make_fresh
from paceline.training.settings import read_config


def test_runs_lie_in_a_folder_of_their_own_with_the_time(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (make_fresh(read_config({"model": "mnist"})) for _ in range(2))
    assert first.parent == second.parent == Path("runs")
    assert first != second


def test_a_trial_leaves_nothing_where_the_user_works(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(TRIAL, str(tmp_path / "trial"))
    assert make_fresh(read_config({"model": "mnist"})).is_relative_to(tmp_path / "trial")
    assert not Path("runs").exists()
