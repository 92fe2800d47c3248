"""The folder of a job on a host that is not the launcher's."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.cluster.identity import JOB_DIR
from paceline.runtime.reaper import REAPER_PID

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")

RANK = "from paceline.runtime.job_dir import prepare_job_dir; prepare_job_dir(); {then}"


def host(folder: Path, then: str = "pass", after: str = "true") -> subprocess.Popen[bytes]:
    """A daemon that starts one rank in a host where the job has no folder yet."""
    rank = f"{sys.executable} -c '{RANK.format(then=then)}'"
    env = os.environ | {JOB_DIR: str(folder)}
    return subprocess.Popen(["sh", "-c", f"{rank}; {after}"], env=env, start_new_session=True)


def wait_for(condition, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def has_ended(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_the_folder_lives_as_long_as_the_daemon_that_started_the_rank(tmp_path: Path):
    folder, ended = tmp_path / "paceline-1-x", tmp_path / "ended"
    daemon = host(folder, after=f"touch {ended}; sleep 100")
    try:
        assert wait_for(ended.exists)  # the rank has; others of its host may not have
        keeper = Path("/proc") / (folder / REAPER_PID).read_text()
        assert f"parent={daemon.pid}" in (keeper / "cmdline").read_text().split("\0")
        assert folder.is_dir()
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
    assert wait_for(lambda: not folder.exists())


def test_a_rank_that_outlives_the_daemon_is_ended(tmp_path: Path):
    folder, pid = tmp_path / "paceline-1-x", tmp_path / "pid"
    then = f'import os, time; open("{pid}", "w").write(str(os.getpid())); time.sleep(100)'
    daemon = host(folder, then)
    assert wait_for(lambda: pid.exists() and pid.read_text() and (folder / REAPER_PID).exists())
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.wait()
    assert wait_for(lambda: not folder.exists())
    assert wait_for(lambda: has_ended(pid.read_text()))
