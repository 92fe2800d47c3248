"""The folder of a trial, on a node where another user has made one of its name."""

import pytest
from support.strangers import give_away, needs_root

from paceline.observe import trial


@pytest.fixture(autouse=True)
def first_to_ask(monkeypatch, tmp_path):
    monkeypatch.setattr(trial, "_taken", False)
    monkeypatch.setattr(trial.atexit, "register", lambda act: None)
    monkeypatch.setenv(trial.TRIAL, str(tmp_path / "trial"))


def test_a_rank_writes_through_no_link(tmp_path):
    (tmp_path / "trial").mkdir(mode=0o700)
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "trial" / "rank-0000.jsonl").symlink_to(tmp_path / "precious")
    assert trial.open_trial(0, 1) is None
    assert (tmp_path / "precious").read_text() == "kept"


@needs_root
def test_a_rank_writes_nothing_into_a_folder_of_another_user(tmp_path):
    (tmp_path / "trial").mkdir()
    give_away(tmp_path / "trial")
    assert trial.open_trial(0, 1) is None
    assert list((tmp_path / "trial").iterdir()) == []


def test_a_rank_writes_into_the_folder_of_its_own_user(tmp_path):
    (tmp_path / "trial").mkdir(mode=0o700)
    assert trial.open_trial(0, 1) is not None
    assert [file.name for file in (tmp_path / "trial").iterdir()] == ["rank-0000.jsonl"]
