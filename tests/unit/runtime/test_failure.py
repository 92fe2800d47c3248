"""Ranks that fail together say it once."""

import threading
from pathlib import Path

import pytest

from paceline.cluster.identity import JOB_DIR
from paceline.runtime import failure
from paceline.runtime.failure import fail, is_first_to_report


def test_only_the_first_rank_of_a_job_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(JOB_DIR, str(tmp_path))
    assert [is_first_to_report() for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize("folder", ["", "gone"])
def test_without_a_folder_of_the_job_every_rank_speaks(folder, tmp_path, monkeypatch):
    monkeypatch.setenv(JOB_DIR, folder and str(tmp_path / folder))
    assert is_first_to_report()
    assert is_first_to_report()


class Rank:
    """A rank of two whose end is only noted."""

    rank, size, node = 0, 2, "here"

    def __init__(self) -> None:
        self.code = 0

    def abort(self, code: int = 1) -> None:
        self.code = code


def test_a_rank_that_nobody_ends_speaks_after_all(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(JOB_DIR, str(tmp_path))
    monkeypatch.setattr(failure, "_WAIT_FOR_END_S", 0.5)
    monkeypatch.setattr(failure, "_FORWARD_S", 0.0)
    first, second = Rank(), Rank()
    fail(first, ValueError("one reason"))
    assert capsys.readouterr().err.count("one reason") == 1
    silent = threading.Thread(target=fail, args=(second, ValueError("the same")))
    silent.start()
    silent.join(0.1)
    assert capsys.readouterr().err == ""
    silent.join(5)
    assert "the same" in capsys.readouterr().err
    assert second.code == 1
