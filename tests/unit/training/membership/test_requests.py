"""Requests to let ranks join or leave are files, which only the owner of a run can write."""

import json
import stat

import pytest

from paceline.errors import ConfigError
from paceline.training.membership.requests import FOLDER, Answer, Desk, Inquiry, MembershipRequest

JOIN = MembershipRequest("join", 2, ("n07", "n08"))
LEAVE = MembershipRequest("leave", ranks=(1, 3))


def test_requests_are_taken_once_in_the_order_in_which_they_were_made(tmp_path):
    desk = Desk(tmp_path)
    for request in (JOIN, LEAVE):
        Inquiry(tmp_path, request)
    assert [request for _, request in desk.take()] == [JOIN, LEAVE]
    assert desk.take() == []


def test_an_answer_reaches_who_asked_and_a_final_one_ends_the_request(tmp_path):
    desk = Desk(tmp_path)
    inquiry = Inquiry(tmp_path, JOIN)
    [(key, _)] = desk.take()
    assert inquiry.answer() is None
    desk.answer(key, Answer("2 processes to start"))
    assert inquiry.answer() == Answer("2 processes to start")
    assert Desk(tmp_path, goes_on=True).take() == [(key, JOIN)]  # by the rank that leads next
    desk.answer(key, Answer("ranks 4, 5 joined", is_final=True))
    assert inquiry.answer() == Answer("ranks 4, 5 joined", is_final=True)
    assert Desk(tmp_path, goes_on=True).take() == []
    inquiry.withdraw()
    assert not list((tmp_path / FOLDER).glob(f"{key}*"))


def test_the_folder_is_private_and_a_request_needs_its_token(tmp_path):
    desk = Desk(tmp_path)
    folder = tmp_path / FOLDER
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    values = {"kind": "leave", "count": 0, "hosts": [], "ranks": [0]}
    for name, token in (("1", "guessed"), ("2", ""), ("3", None)):
        given = values if token is None else {**values, "token": token}
        (folder / f"{name}.request").write_text(json.dumps(given))
    (folder / "4.request").write_text("[")
    (folder / "5.request").symlink_to("/etc/passwd")
    assert desk.take() == []


def test_a_new_job_takes_nothing_that_an_older_one_was_asked(tmp_path):
    before = Desk(tmp_path)
    Inquiry(tmp_path, JOIN)
    before.target = 7
    assert Desk(tmp_path, goes_on=True).target == 7
    desk = Desk(tmp_path)
    assert desk.take() == []
    assert desk.target is None


def test_who_asks_learns_that_the_run_is_over_or_never_was_elastic(tmp_path):
    with pytest.raises(ConfigError, match="start one with --elastic"):
        Inquiry(tmp_path, JOIN)
    with pytest.raises(ConfigError, match="is not a directory"):
        Inquiry(tmp_path / "missing", JOIN)
    desk = Desk(tmp_path)
    inquiry = Inquiry(tmp_path, JOIN)
    desk.close()
    assert inquiry.answer() == Answer("the run has ended", is_final=True, is_refused=True)
