import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.launch.banners import BannerFilter
from paceline.launch.environment import JOB_FOLDER
from paceline.launch.lodging import STARTED, settle_in, take_word, tell_launcher
from paceline.launch.undertaker import KEEPER

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")

RANK = "from paceline.launch.lodging import settle_in; settle_in(); {then}"


def host(folder: Path, then: str = "pass", after: str = "true") -> subprocess.Popen[bytes]:
    """A daemon that starts one rank in a host where the job has no folder yet."""
    rank = f"{sys.executable} -c '{RANK.format(then=then)}'"
    env = os.environ | {JOB_FOLDER: str(folder)}
    return subprocess.Popen(["sh", "-c", f"{rank}; {after}"], env=env, start_new_session=True)


def wait_for(condition, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_the_folder_lives_as_long_as_the_daemon_that_started_the_rank(tmp_path: Path):
    folder = tmp_path / "paceline-1-x"
    daemon = host(folder, after="sleep 30")
    try:
        assert wait_for((folder / KEEPER).exists)
        time.sleep(0.3)  # the rank has ended, others of its host may not have
        assert folder.is_dir()
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
    assert wait_for(lambda: not folder.exists())


def test_a_rank_that_outlives_the_daemon_is_ended(tmp_path: Path):
    folder, pid = tmp_path / "paceline-1-x", tmp_path / "pid"
    then = f'import os, time; open("{pid}", "w").write(str(os.getpid())); time.sleep(60)'
    daemon = host(folder, then)
    assert wait_for(lambda: pid.exists() and pid.read_text() and (folder / KEEPER).exists())
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.wait()
    assert wait_for(lambda: not folder.exists())
    assert wait_for(lambda: not Path(f"/proc/{pid.read_text()}").exists())


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
