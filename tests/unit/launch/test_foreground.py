import os
import signal

import pytest

from paceline.launch import foreground
from paceline.launch.deaths import Death, Loss
from paceline.launch.foreground import HOST_LOST, Leader, choose_code, run_foreground, run_job

KILLED = Death(1, 7, "n07", signal.SIGKILL)


@pytest.mark.parametrize(
    ("returncode", "ending", "death", "code"),
    [
        (0, None, None, 0),
        (3, None, None, 3),
        (-9, None, None, 137),  # mpirun itself was killed
        (9, None, KILLED, 137),  # as Hydra tells it
        (137, None, KILLED, 137),  # as Open MPI does
        (1, signal.SIGTERM, None, 143),
        (-9, signal.SIGINT, None, 130),
        (0, signal.SIGINT, None, 0),  # it was done when the signal came
        (75, None, None, 75),
        (75, signal.SIGTERM, None, 75),
        (75, signal.SIGHUP, None, 75),
        (75, signal.SIGINT, None, 130),
    ],
)
def test_the_exit_code_says_what_happened(returncode, ending, death, code):
    assert choose_code(returncode, ending, death) == code


def test_a_lost_host_is_no_success_whatever_mpirun_says():
    whole, cut_off = Loss("n07", whole=True), Loss("n07", whole=False)
    assert choose_code(0, None, None, whole) == HOST_LOST
    assert choose_code(14, None, None, cut_off) == 14
    assert choose_code(0, None, None, cut_off) == 0
    assert choose_code(1, signal.SIGTERM, None, whole) == 128 + signal.SIGTERM


def test_a_lost_host_is_named_and_the_code_tells(capfd):
    said = (
        "PRTE has lost communication with a remote daemon.\n\n"
        "  Remote daemon: [prterun-a-42@0,1] on node n07\n"
    )
    rule = "-" * 74
    program = ["sh", "-c", f"printf '%s\\n' '{rule}' '{said}' '{rule}' >&2"]
    assert run_foreground(program, dict(os.environ)) == HOST_LOST
    assert capfd.readouterr().err.startswith("paceline: host n07 was lost")
    assert run_foreground(program, dict(os.environ), raw=True) == HOST_LOST
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("starts", [True, False])
def test_ranks_that_never_start_on_other_hosts_are_given_up(tmp_path, capfd, monkeypatch, starts):
    monkeypatch.setattr(foreground, "START_WARNING_S", 0.2)
    monkeypatch.setattr(foreground, "START_TIMEOUT_S", 0.6)
    if starts:
        (tmp_path / "started").touch()
    leader = Leader("mpirun", "openmpi", ("n07", "n08"))
    ended = run_job(["sleep", "1.5"], dict(os.environ), folder=tmp_path, leader=leader)
    said = capfd.readouterr().err
    assert ended.code == (0 if starts else 137)
    assert ("no rank has started on n07,n08" in said) is not starts
    assert ("doctor --hosts n07,n08" in said) is not starts
