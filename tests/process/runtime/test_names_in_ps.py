"""Other users see command lines: a folder whose name they know could be made by them first."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.cluster.identity import JOB_DIR
from paceline.runtime.reaper import REAPER_PID, reaper_beside

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")


def command_lines(parent: int | None = None) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
            its_parent = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
            if parent in (None, its_parent):
                found.append(line)
        except (OSError, IndexError):
            continue
    return found


def lines_of_children(parent: int) -> list[str]:
    """Popen returns when exec closes its pipe; the kernel writes the command line after that."""
    end = time.monotonic() + 30
    lines = command_lines(parent)
    while not all(lines) and time.monotonic() < end:
        time.sleep(0.02)
        lines = command_lines(parent)
    return lines


def test_the_reaper_does_not_show_the_folder_and_removes_it(tmp_path):
    folder = tmp_path / "paceline-1-secret"
    folder.mkdir(mode=0o700)
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from paceline.runtime.reaper import reaper_beside\n"
        "with reaper_beside(Path(os.environ['FOLDER']), None):\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"FOLDER": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert launcher.stdout.readline() == b"ready\n"
        lines = lines_of_children(launcher.pid)
    finally:
        launcher.kill()
        launcher.communicate()
    assert len(lines) == 1
    assert "reaper" in lines[0]
    assert "secret" not in lines[0]
    assert wait_until_gone(folder)


def test_the_keeper_does_not_show_the_folder(tmp_path):
    folder = tmp_path / "paceline-1-hidden"
    rank = (
        "from paceline.runtime.job_dir import prepare_job_dir\n"
        "prepare_job_dir()\n"
        "print(1, flush=True)\n"
        "input()\n"
    )
    env = os.environ | {JOB_DIR: str(folder)}
    daemon = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1"; true', sys.executable, rank],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert daemon.stdout.readline() == b"1\n"
        keeper = (folder / REAPER_PID).read_text()
        assert keeper.isdecimal()
        assert not [line for line in command_lines() if "hidden" in line]
    finally:
        daemon.communicate(b"\n")
    assert wait_until_gone(folder)


def test_a_dismissed_reaper_leaves_the_folder(tmp_path):
    with reaper_beside(tmp_path, None):
        pass
    assert tmp_path.exists()


def wait_until_gone(folder: Path) -> bool:
    end = time.monotonic() + 30
    while folder.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return not folder.exists()
