"""Files that a reader never sees half-written."""

import os

import pytest

from paceline.core.files import draft_of, synced_draft, write_atomically
from paceline.errors import OutputError


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("old")
    with draft_of(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_a_draft_that_fails_is_removed(kind, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("old")

    def write():
        with synced_draft(path) as file:
            file.write(b"half")
            raise kind

    with pytest.raises(kind):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    path = tmp_path / "model.bin"
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(path.exists()))
    with synced_draft(path) as file:
        file.write(b"weights")
    assert synced == [False]
    assert path.read_bytes() == b"weights"


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    with pytest.raises(OutputError, match=r"report\.json cannot be written: No such file"):
        write_atomically(tmp_path / "missing" / "report.json", "{}")
