from pathlib import Path

import pytest

from paceline.cluster.identity import JOB_FOLDER
from paceline.launch.mpirun_output import BannerFilter
from paceline.runtime.job_dir import STARTED, settle_in, take_word, tell_launcher
from paceline.runtime.reaper import KEEPER

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")


def test_where_the_folder_is_nobody_keeps_it(tmp_path: Path, monkeypatch):
    monkeypatch.setenv(JOB_FOLDER, str(tmp_path))
    settle_in()
    assert [file.name for file in tmp_path.iterdir()] == [STARTED]


def test_word_for_the_launcher_is_a_file(tmp_path: Path, monkeypatch, capfd):
    monkeypatch.setenv(JOB_FOLDER, str(tmp_path))
    tell_launcher("saves", "")
    assert (tmp_path / "saves").exists()
    tell_launcher("saves", None)
    assert not (tmp_path / "saves").exists()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("text", ["", '{"1": {"step": 3}}', "two words"])
def test_word_from_another_host_becomes_the_launchers_file(tmp_path, monkeypatch, capfd, text):
    away, here = tmp_path / "away", tmp_path / "here"
    away.mkdir()
    here.mkdir()
    (away / KEEPER).write_text("1")
    monkeypatch.setenv(JOB_FOLDER, str(away))
    banners = BannerFilter()

    def pass_on() -> bytes:
        shown = banners.feed(capfd.readouterr().err.encode())
        while banners.words:
            take_word(banners.words.pop(0), here)
        return shown

    tell_launcher("pulse.json", text)
    assert pass_on() == b""
    assert (here / "pulse.json").read_text() == text
    tell_launcher("pulse.json", None)
    assert pass_on() == b""
    assert not (here / "pulse.json").exists()


def test_words_cannot_leave_the_folder(tmp_path: Path):
    take_word(b"\x1epaceline ../escaped =text\n", tmp_path / "here")
    assert list(tmp_path.iterdir()) == []
