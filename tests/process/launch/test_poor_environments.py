"""A shell that allows too little, a directory that is gone: one sentence; no rank is started."""

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.errors import LaunchError
from paceline.launch.mpirun import find_mpirun

TRAIN = f"{sys.executable} -m paceline train mnist -n 2 --epochs 1"


def in_shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def _open_mpi() -> None:
    try:
        kind = find_mpirun().kind
    except LaunchError as error:
        pytest.skip(str(error))
    if kind != "openmpi":
        pytest.skip(f"the limits are those of Open MPI, and mpirun is of {kind}")


@pytest.mark.usefixtures("_open_mpi")
@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("ulimit -n 24", "allows 24 open files"),
        ("ulimit -f 64", "allows files of 65536 bytes"),
    ],
)
def test_a_limit_of_the_shell_is_told(limit: str, words: str, tmp_path: Path) -> None:
    done = in_shell(f"{limit} && {TRAIN}", tmp_path)
    assert done.returncode == 1, done.stderr
    assert words in done.stderr
    assert done.stderr.startswith("LaunchError: 2 ranks cannot be started here: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = in_shell(f"cd gone && rmdir ../gone && {TRAIN}", tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("LaunchError: the current directory cannot be read")
    assert len(done.stderr.splitlines()) == 1
