"""Programs in the foreground: hosts that are lost, and ranks that never start."""

import os

import pytest

from paceline.errors import HOST_LOST
from paceline.launch import output
from paceline.launch.job import LauncherProcess
from paceline.launch.supervise import supervise_command, supervise_job


def test_a_lost_host_is_named_and_the_code_tells(capfd):
    said = (
        "PRTE has lost communication with a remote daemon.\n\n"
        "  Remote daemon: [prterun-a-42@0,1] on node n07\n"
    )
    rule = "-" * 74
    program = ["sh", "-c", f"printf '%s\\n' '{rule}' '{said}' '{rule}' >&2"]
    assert supervise_command(program, dict(os.environ)) == HOST_LOST
    assert capfd.readouterr().err.startswith("paceline: host n07 was lost")
    assert supervise_command(program, dict(os.environ), raw=True) == HOST_LOST
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("watched", [True, False])
def test_who_looks_at_a_terminal_hears_that_ranks_are_started(capfd, monkeypatch, watched):
    monkeypatch.setattr(output, "QUIET_S", 0.0)
    monkeypatch.setattr(os, "isatty", lambda target: watched)
    launcher = LauncherProcess("mpirun", "openmpi", ranks=3)
    supervise_job(["sleep", "0.5"], dict(os.environ), launcher=launcher)
    said = "paceline: starting 3 ranks ...\n"
    assert capfd.readouterr().err == (said if watched else "")


@pytest.mark.parametrize("starts", [True, False])
def test_ranks_that_never_start_on_other_hosts_are_given_up(tmp_path, capfd, monkeypatch, starts):
    monkeypatch.setattr(output, "START_WARNING_S", 0.2)
    monkeypatch.setattr(output, "START_TIMEOUT_S", 0.6)
    if starts:
        (tmp_path / "started").touch()
    launcher = LauncherProcess("mpirun", "openmpi", ("n07", "n08"))
    program = ["sleep", "1.5" if starts else "60"]
    ended = supervise_job(program, dict(os.environ), folder=tmp_path, launcher=launcher)
    said = capfd.readouterr().err
    assert ended.code == (0 if starts else 137)
    assert ("no rank has started on n07,n08" in said) is not starts
    assert ("doctor --hosts n07,n08" in said) is not starts
