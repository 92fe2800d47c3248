"""A cache in a directory where other users write, too."""

import fcntl
import os
from pathlib import Path

import pytest
from support.strangers import give_away, needs_root

from paceline.data.cache.node_cache import NodeCache
from paceline.data.cache.shared_folder import LOCK, PREFIX, join, remove_if_unused, remove_stale
from paceline.errors import ConfigError


@pytest.fixture
def source(tmp_path) -> Path:
    (tmp_path / "source").write_bytes(b"samples")
    return tmp_path / "source"


@needs_root
def test_a_folder_of_another_user_is_refused_with_what_to_do(tmp_path, source):
    folder = tmp_path / f"{PREFIX}run"
    folder.mkdir()
    give_away(folder)
    words = "belongs to user 65534, not to 0; name a folder"
    with pytest.raises(ConfigError, match=words):
        NodeCache(tmp_path, "run").fetch([source])
    assert list(folder.iterdir()) == []


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path, source):
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"{PREFIX}run").symlink_to(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="it is a link"):
        NodeCache(tmp_path, "run").fetch([source])
    assert list((tmp_path / "theirs").iterdir()) == []


@needs_root
@pytest.mark.timeout(20)
def test_a_lock_that_another_user_holds_for_ever_is_not_waited_for(tmp_path):
    folder = tmp_path / f"{PREFIX}run"
    folder.mkdir(mode=0o700)
    with (folder / LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        give_away(folder / LOCK)
        with pytest.raises(OSError, match="belongs to user 65534"):
            join(folder)


def test_what_links_lead_to_is_never_removed(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in (LOCK, "file"):
        (precious / name).touch()
    link = tmp_path / f"{PREFIX}x"
    link.symlink_to(precious)
    remove_stale(tmp_path)
    assert not remove_if_unused(link)
    assert (precious / "file").exists()


@needs_root
def test_folders_of_other_users_are_left_alone(tmp_path):
    for name in ("empty", "full"):
        (tmp_path / f"{PREFIX}{name}").mkdir()
        give_away(tmp_path / f"{PREFIX}{name}")
    (tmp_path / f"{PREFIX}full" / LOCK).touch()
    remove_stale(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.timeout(20)
def test_a_fifo_in_the_place_of_the_lock_is_left(tmp_path):
    folder = tmp_path / f"{PREFIX}x"
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / LOCK)
    assert not remove_if_unused(folder)
    with pytest.raises(OSError, match="not a plain file"):
        join(folder)
