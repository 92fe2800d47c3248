"""A process number may be given to somebody else once its process was reaped."""

import os
import signal
import subprocess
import sys

import pytest

from paceline.launch.output import JobOutput
from paceline.launch.supervise import supervise_job
from paceline.runtime import reaper as reaper
from paceline.tools.tune import trial


@pytest.fixture
def signalled(monkeypatch) -> list[tuple[int, bool]]:
    """The groups that were sent a signal, and whether their leaders could be waited for then."""
    seen = []
    real = os.killpg

    def killpg(group, number):
        try:
            held = os.waitid(os.P_PID, group, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            seen.append((group, held is not None or os.getpgid(group) == group))
        except ChildProcessError:
            seen.append((group, False))
        real(group, number)

    monkeypatch.setattr(os, "killpg", killpg)
    return seen


@pytest.mark.parametrize(
    "program", ["", "raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"]
)
@pytest.mark.parametrize("leaves_behind", [False, True])
def test_a_job_is_cleared_up_before_its_leader_is_reaped(program, leaves_behind, signalled):
    if leaves_behind:  # it holds stderr open
        program = f"import subprocess; subprocess.Popen(['sleep', '60'])\n{program}"
    ended = supervise_job([sys.executable, "-c", program], dict(os.environ))
    assert ended.code == (3 if "3)" in program else 137 if "kill" in program else 0)
    assert signalled
    assert all(held for _, held in signalled)


def test_a_signal_after_the_end_goes_nowhere(signalled, monkeypatch):
    """Signals may come until the launcher's handlers are taken away."""
    plain = JobOutput.close

    def close(output):
        plain(output)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(JobOutput, "close", close)
    supervise_job([sys.executable, "-c", ""], dict(os.environ))
    assert all(held for _, held in signalled)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("polled", [True, False])
def test_a_trial_that_has_ended_is_signalled_only_before_it_is_reaped(alone, polled, signalled):
    child = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    if polled:
        child.wait()
    trial.end(child, alone)
    assert child.returncode == 0
    assert all(held for _, held in signalled)


def test_the_reaper_kills_nobody_when_all_are_gone(monkeypatch, tmp_path):
    """By then the number of the session may be somebody else's."""
    killed = []
    monkeypatch.setattr(reaper, "members", lambda session, folder: iter(()))
    monkeypatch.setattr(reaper, "kill_job", lambda *job: killed.append(job))
    reaper.end_session(4194304999, tmp_path)
    assert killed == []
