"""Folders and files in places where other users write, too."""

import os
import stat
from pathlib import Path

import pytest
from support.strangers import give_away, needs_root

from paceline.core.private import (
    NotOurs,
    make_folder,
    open_file,
    opened_folder,
    read_text,
    remove_folder,
    write_text,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_what_is_made_is_for_us_alone(tmp_path, monkeypatch):
    before = os.umask(0)
    try:
        assert make_folder(tmp_path / "new")
        assert not make_folder(tmp_path / "new")
        write_text(tmp_path / "new" / "word", "text")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == 0o700
    assert mode(tmp_path / "new" / "word") == 0o600
    assert read_text(tmp_path / "new" / "word") == "text"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["word"]


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(NotOurs, match="it is a link"):
        make_folder(tmp_path / "link")
    with pytest.raises(NotOurs), opened_folder(tmp_path / "link"):
        pass


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(NotOurs, match="mode 777"):
        make_folder(tmp_path / "open")


@needs_root
def test_a_folder_of_another_user_is_refused_and_not_removed(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    give_away(folder)
    with pytest.raises(NotOurs, match="belongs to user 65534, not to 0"):
        make_folder(folder)
    remove_folder(folder)
    assert folder.exists()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("act", [read_text, lambda path: write_text(path, "text")])
@pytest.mark.parametrize("name", ["word", "word.new"])
def test_a_fifo_is_never_waited_for(tmp_path, act, name):
    (tmp_path / "word").write_text("ours")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    if (act is read_text) == (name == "word"):
        with pytest.raises(NotOurs):
            act(tmp_path / "word")
    else:
        act(tmp_path / "word")  # what is not opened does no harm


def test_no_link_is_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    for name in ("word", "word.new"):
        (tmp_path / name).symlink_to(precious)
    with pytest.raises(NotOurs, match="it is a link"):
        read_text(tmp_path / "word")
    with pytest.raises(NotOurs, match="it is a link"):
        write_text(tmp_path / "word", "changed")
    with pytest.raises(NotOurs):
        open_file(tmp_path / "word", os.O_RDWR)
    assert precious.read_text() == "kept"


@needs_root
def test_a_file_of_another_user_is_refused(tmp_path):
    (tmp_path / "word").write_text("theirs")
    give_away(tmp_path / "word")
    with pytest.raises(NotOurs, match="belongs to user 65534"):
        read_text(tmp_path / "word")


def test_names_in_an_open_folder_stay_there_whatever_has_its_name(tmp_path):
    folder = tmp_path / "ours"
    make_folder(folder)
    with opened_folder(folder) as opened:
        folder.rename(tmp_path / "moved")
        folder.mkdir()
        write_text("word", "text", opened)
        assert read_text("word", opened) == "text"
    assert (tmp_path / "moved" / "word").exists()
    assert list(folder.iterdir()) == []


def test_a_folder_of_ours_is_removed_and_what_links_lead_to_is_not(tmp_path):
    folder, precious = tmp_path / "ours", tmp_path / "precious"
    make_folder(folder)
    precious.mkdir()
    (precious / "file").touch()
    (folder / "link").symlink_to(precious)
    remove_folder(folder)
    remove_folder(folder)  # it is gone
    assert not folder.exists()
    assert (precious / "file").exists()
