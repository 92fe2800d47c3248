"""What a shell or a container may hold back: each is told with what was found and what to do."""

import os
import tempfile

import pytest

from paceline.errors import LaunchError
from paceline.launch import limits

PLENTY = {"open_files": 1024, "file_bytes": 1e12, "shared_bytes": 1e12}


def test_plenty_is_enough():
    assert limits.find_faults(64, **PLENTY) == []


@pytest.mark.parametrize(
    ("short", "words"),
    [
        ({"open_files": 24}, ["allows 24 open files", "need 40", "ulimit -n"]),
        ({"file_bytes": 65536}, ["files of 65536 bytes", "need 16777216", "ulimit -f"]),
        ({"shared_bytes": 1 << 20}, ["/dev/shm has 1048576 bytes", "16777216", "--shm-size"]),
    ],
)
def test_what_is_short_is_named(short, words):
    (fault,) = limits.find_faults(2, **(PLENTY | short))
    for word in words:
        assert word in fault


def test_everything_that_is_short_is_one_error(monkeypatch):
    monkeypatch.setattr(limits, "_allow_files", lambda need: 24)
    monkeypatch.setattr(limits, "_shared_bytes", lambda: 1)
    with pytest.raises(LaunchError, match=r"2 ranks cannot be started here: .*files; |files, "):
        limits.check_limits(2)


def test_home_and_path_are_completed_where_they_are_missing():
    environ = {"PATH": ""}
    limits.complete_environment(environ)
    assert environ["HOME"]
    assert environ["PATH"] == os.defpath


def test_what_the_user_has_set_stays():
    environ = {"HOME": "/somewhere", "PATH": "/elsewhere"}
    limits.complete_environment(environ)
    assert environ == {"HOME": "/somewhere", "PATH": "/elsewhere"}


def test_a_user_without_a_name_gets_a_home(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    environ: dict[str, str] = {}
    limits.complete_environment(environ)
    assert environ["HOME"] == tempfile.gettempdir()
