"""Job scripts as bash runs them, with a variable whose value comes with the job."""

import os
import subprocess

import pytest
from support.job_requests import request

from paceline.cluster.schedulers import SCHEDULERS

NUMBERS = {"SLURM_JOB_ID": "7", "JOB_ID": "7", "PBS_JOBID": "7.server", "LSB_JOBID": "7"}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("value", ["a secret", "", None])
def test_the_command_finds_the_variable_or_the_job_says_what_is_missing(tmp_path, scheduler, value):
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "found <$TOKEN>"\n')
    program.chmod(0o755)
    wanted = request(
        run_dir=tmp_path, directory=tmp_path, python=str(program), env=(("TOKEN", None),)
    )
    (tmp_path / "job.sh").write_text(SCHEDULERS[scheduler].render(wanted))
    env = {"PATH": os.environ["PATH"]} | NUMBERS | ({} if value is None else {"TOKEN": value})
    done = subprocess.run(
        ["bash", "job.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30
    )
    log = tmp_path / "job-7.log"  # PBS writes there by itself
    said = done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    if value is None:
        assert done.returncode == 2
        assert "TOKEN is not set in this job" in said
        assert (tmp_path / "job-7.exit").read_text() == "2\n"
    else:
        assert done.returncode == 0
        assert f"found <{value}>" in said
