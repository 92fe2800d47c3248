"""Commands of schedulers, as they are asked for."""

import pytest
from support.job_requests import request

from paceline.cluster.schedulers import SCHEDULERS
from paceline.cluster.schedulers.interface import CommandReply
from paceline.cluster.schedulers.submit import ask_scheduler, submit
from paceline.errors import LaunchError


def test_a_scheduler_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    run_dir = tmp_path / "runs" / "new"
    with pytest.raises(LaunchError, match=r"sbatch is not on PATH. Submit from a login node"):
        submit(request(run_dir=run_dir), SCHEDULERS["slurm"])
    assert not run_dir.exists()


def test_commands_are_asked_for_real():
    assert ask_scheduler(("sh", "-c", "echo out; echo err >&2; exit 3")) == CommandReply(
        3, "out\nerr\n"
    )
    assert ask_scheduler(("no-such-command",)).code is None
