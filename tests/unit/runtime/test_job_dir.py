from pathlib import Path

import pytest

from paceline.cluster.identity import JOB_DIR
from paceline.launch.mpirun_output import OutputFilter
from paceline.runtime.job_dir import STARTED, apply_notification, notify_launcher, prepare_job_dir
from paceline.runtime.reaper import REAPER_PID

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")


def test_where_the_folder_is_nobody_keeps_it(tmp_path: Path, monkeypatch):
    monkeypatch.setenv(JOB_DIR, str(tmp_path))
    prepare_job_dir()
    assert [file.name for file in tmp_path.iterdir()] == [STARTED]


def test_word_for_the_launcher_is_a_file(tmp_path: Path, monkeypatch, capfd):
    monkeypatch.setenv(JOB_DIR, str(tmp_path))
    notify_launcher("saves", "")
    assert (tmp_path / "saves").exists()
    notify_launcher("saves", None)
    assert not (tmp_path / "saves").exists()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("text", ["", '{"1": {"step": 3}}', "two words"])
def test_word_from_another_host_becomes_the_launchers_file(tmp_path, monkeypatch, capfd, text):
    away, here = tmp_path / "away", tmp_path / "here"
    away.mkdir()
    here.mkdir()
    (away / REAPER_PID).write_text("1")
    monkeypatch.setenv(JOB_DIR, str(away))
    banners = OutputFilter()

    def pass_on() -> bytes:
        shown = banners.feed(capfd.readouterr().err.encode())
        while banners.notifications:
            apply_notification(banners.notifications.pop(0), here)
        return shown

    notify_launcher("heartbeats.json", text)
    assert pass_on() == b""
    assert (here / "heartbeats.json").read_text() == text
    notify_launcher("heartbeats.json", None)
    assert pass_on() == b""
    assert not (here / "heartbeats.json").exists()


def test_words_cannot_leave_the_folder(tmp_path: Path):
    apply_notification(b"\x1epaceline ../escaped =text\n", tmp_path / "here")
    assert list(tmp_path.iterdir()) == []
