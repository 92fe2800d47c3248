"""The page at the end of `paceline train`, where it cannot be written."""

import pytest

from paceline.cli.train import _write_page
from paceline.observe import EventLog
from paceline.observe.trial import TRIAL


@pytest.fixture
def run(tmp_path):
    with EventLog(tmp_path / "run" / "events", 0, "n") as log:
        log.write("step", step=1, seconds=0.1, loss=1.0, samples=8)
    return tmp_path / "run"


def test_it_is_written_into_the_run_directory(run):
    assert _write_page(run) == run / "report.html"
    assert "<h1>run</h1>" in (run / "report.html").read_text()


def test_whatever_is_wrong_with_it_the_run_is_well(run, capsys):
    (run / "report.html" / "in the way").mkdir(parents=True)
    assert _write_page(run) is None
    assert "paceline: no report was written: " in capsys.readouterr().err
    (run / "history.jsonl").write_text("no history\n")
    assert _write_page(run) is None


def test_trials_leave_none(run, monkeypatch):
    monkeypatch.setenv(TRIAL, "somewhere")
    assert _write_page(run) is None
    assert not (run / "report.html").exists()
