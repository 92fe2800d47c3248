"""Jobs that tests start, interrupt and kill, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.errors import LaunchError
from paceline.launch.mpirun import find_mpirun

try:
    KIND = find_mpirun().kind
except LaunchError as error:
    pytest.skip(f"no mpirun: {error}", allow_module_level=True)

HANG_S = 60.0

# Under nohup a launcher rightly ignores SIGHUP; here it is to be sent one.
LAUNCH = """
import signal, sys
from paceline.launch.mpirun_command import Job
from paceline.launch.mpirun import start
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.exit(start(Job(int(sys.argv[1]), 1, (sys.executable, *sys.argv[2:]))))
"""


def launch(program: str, *args: str, ranks: int = 2, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(ranks), "-c", program, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


def living(marker: str) -> list[str]:
    """The processes whose command line holds the marker, those that only wait to be reaped not."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if marker.encode() in command and state != "Z":
            found.append(entry.name)
    return found


def wait_until_gone(marker: str) -> list[str]:
    """Processes with the marker that do not go; the limit is for a hang."""
    end = time.monotonic() + HANG_S
    while (left := living(marker)) and time.monotonic() < end:
        time.sleep(0.02)
    return left
