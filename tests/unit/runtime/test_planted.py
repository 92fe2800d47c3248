"""What other users of a node may have planted where a job's folder lies or will lie."""

import os
import time
from pathlib import Path

import pytest
from support.strangers import give_away, needs_root

from paceline.cluster.identity import JOB_DIR
from paceline.errors import LaunchError
from paceline.launch import job_dir
from paceline.launch.job_dir import remove_stale_job_dirs
from paceline.runtime.job_dir import STARTED, apply_notification, notify_launcher, prepare_job_dir
from paceline.runtime.reaper import REAPER_PID

NOBODY = "paceline-4194304999-x"
"""The folder of a launcher that has ended: no process has such a number."""


@pytest.fixture
def memory(tmp_path, monkeypatch) -> Path:
    """The shared memory of a node."""
    monkeypatch.setattr(job_dir, "_SHARED_MEMORY", str(tmp_path))
    return tmp_path


@pytest.mark.timeout(20)
def test_a_fifo_in_the_place_of_a_word_hangs_no_launcher(memory):
    (memory / NOBODY).mkdir(mode=0o700)
    os.mkfifo(memory / NOBODY / REAPER_PID)
    (memory / "paceline-4194304998-x").mkdir(mode=0o700)
    remove_stale_job_dirs(unused_s=0)
    assert [path.name for path in memory.iterdir()] == [NOBODY]


@needs_root
def test_folders_of_other_users_are_left_alone(memory):
    (memory / NOBODY).mkdir()
    give_away(memory / NOBODY)
    remove_stale_job_dirs(unused_s=0)
    assert (memory / NOBODY).exists()


def test_a_link_in_the_shared_memory_leads_nowhere(memory, tmp_path_factory):
    precious = tmp_path_factory.mktemp("precious")
    (precious / "file").touch()
    (memory / NOBODY).symlink_to(precious)
    remove_stale_job_dirs(unused_s=0)
    assert (precious / "file").exists()


@needs_root
def test_a_folder_of_another_user_is_no_folder_of_the_job(memory, monkeypatch):
    folder = memory / "paceline-1-x"
    folder.mkdir()
    give_away(folder)
    monkeypatch.setenv(JOB_DIR, str(folder))
    words = rf"{folder} on .*: it belongs to user 65534, not to 0\. Start the job again"
    with pytest.raises(LaunchError, match=words):
        prepare_job_dir()
    assert list(folder.iterdir()) == []


def test_a_link_is_no_folder_of_the_job(memory, monkeypatch, tmp_path_factory):
    theirs = tmp_path_factory.mktemp("theirs")
    (memory / "paceline-1-x").symlink_to(theirs)
    monkeypatch.setenv(JOB_DIR, str(memory / "paceline-1-x"))
    with pytest.raises(LaunchError, match="it is a link"):
        prepare_job_dir()
    assert list(theirs.iterdir()) == []


def test_words_are_written_through_no_link(tmp_path, monkeypatch):
    folder, precious = tmp_path / "paceline-1-x", tmp_path / "precious"
    folder.mkdir(mode=0o700)
    precious.write_text("kept")
    monkeypatch.setenv(JOB_DIR, str(folder))
    for name in (STARTED, f"{STARTED}.new", "heartbeats.json", "heartbeats.json.new"):
        (folder / name).symlink_to(precious)
    notify_launcher(STARTED, "changed")
    apply_notification(b"\x1epaceline heartbeats.json =changed\n", folder)
    assert precious.read_text() == "kept"


@needs_root
def test_no_word_goes_into_a_folder_of_another_user(tmp_path, monkeypatch, capfd):
    folder = tmp_path / "paceline-1-x"
    folder.mkdir()
    (folder / REAPER_PID).touch()
    give_away(folder)
    monkeypatch.setenv(JOB_DIR, str(folder))
    notify_launcher("saves", "")
    assert [path.name for path in folder.iterdir()] == [REAPER_PID]
    assert capfd.readouterr().err == ""


def test_the_age_of_a_folder_is_its_own_and_not_that_of_a_link(memory):
    (memory / NOBODY).mkdir(mode=0o700)
    remove_stale_job_dirs(unused_s=60)
    assert (memory / NOBODY).exists()
    long_ago = time.time() - 100
    os.utime(memory / NOBODY, (long_ago, long_ago))
    remove_stale_job_dirs(unused_s=60)
    assert not (memory / NOBODY).exists()
