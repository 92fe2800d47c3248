"""The step that the message for an error names."""

import threading
from types import SimpleNamespace

import pytest

from paceline.errors import DataError
from paceline.runtime.failure import describe
from paceline.runtime.watchdog import watched
from paceline.runtime.watchdog.sections import own_sections

RANK = SimpleNamespace(rank=1, size=2, node="n07")


@pytest.fixture(autouse=True)
def is_watched(monkeypatch):
    monkeypatch.setattr(own_sections, "are_watched", True)
    monkeypatch.setattr(own_sections, "entered", [])


def leave_section(error, step=7):
    with pytest.raises(type(error)), watched(lambda: (0, step), 30, 600):
        raise error
    return error


def test_an_error_tells_the_step_of_the_section_it_has_left():
    error = leave_section(DataError("file x is damaged"))
    assert describe(RANK, error) == "DataError on rank 1 (n07) at step 7: file x is damaged\n"
    last = describe(RANK, leave_section(ValueError("in step 3"))).splitlines()[-1]
    assert last == "paceline: ValueError on rank 1 (n07) at step 7; all ranks were ended"


def test_the_inner_section_counts():
    error = leave_section(leave_section(ValueError("no"), step=7), step=9)
    assert "at step 7; all" in describe(RANK, error)


def test_an_error_of_another_thread_tells_where_the_rank_is():
    texts = []
    with watched(lambda: (0, 5), 30, 600):
        error = SystemExit(3)
        thread = threading.Thread(target=lambda: texts.append(describe(RANK, error)))
        thread.start()
        thread.join()
    assert texts == ["paceline: exit with 3 on rank 1 (n07) at step 5; all ranks were ended\n"]


def test_no_step_is_told_twice_nor_before_the_first_nor_outside():
    told = leave_section(DataError("waited at step 12 for rank 0"))
    assert describe(RANK, told) == "DataError on rank 1 (n07): waited at step 12 for rank 0\n"
    for error in (leave_section(DataError("x"), step=0), DataError("x")):
        assert describe(RANK, error) == "DataError on rank 1 (n07): x\n"


def test_a_step_that_cannot_be_told_hides_no_error():
    with pytest.raises(DataError, match="x"), watched(lambda: 1 // 0, 30, 600):
        raise DataError("x")
