"""`paceline submit slurm` on a real Slurm."""

import re

import pytest
from support.clusters.cluster import HANG_S, wait_for
from support.clusters.submit_checks import (
    LINE,
    LONG,
    Submitting,
    check_array,
    check_ctrl_c_spares_the_job,
    check_exit_code,
    ended,
)


@pytest.fixture
def user(slurm):
    yield Submitting(slurm, "slurm", "submit")
    slurm.run(["scancel", "--user=root"])


def test_the_exit_code_of_a_job_is_returned(user):
    check_exit_code(user)


def test_an_array_has_a_run_for_each_seed(user):
    check_array(user)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--queue", "nowhere"), "Choose another --queue (there are: main, other)"),
        (("--memory-per-rank", "2T"), "No node has that many cores, that much memory"),
        (("--account", "a,b", "--nodes", "no"), "--account is 'a,b', expected: the name of one"),
    ],
    ids=["queue", "memory", "settings"],
)
def test_what_slurm_does_not_have_is_explained(user, words, complaint):
    done = user.submit(*words, "--", *LINE)
    assert done.returncode in (1, 2)
    assert complaint in done.stderr
    assert not list(user.place.glob("runs/*"))


def test_a_job_that_can_never_start_is_not_waited_for(user):
    done = user.submit("--nodes", "9", "--wait", "--", *LINE, "--run-dir", "run")
    assert done.returncode == 1
    assert "ask for fewer --nodes" in done.stderr
    assert "Stop it: scancel" in done.stderr


def test_a_name_of_any_text_arrives(user):
    name = """my "big" job: it's $(mine) #1 \\ ü"""
    done = user.submit("--name", name, "--extra=--hold", "--", *LINE, "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[1]
    told = user.cluster.tell("squeue", "--noheader", "--format=%j", "--jobs", job)
    assert told.strip() == name


def test_ctrl_c_spares_the_job_and_scancel_leaves_nothing(user):
    check_ctrl_c_spares_the_job(user, "scancel")


def test_a_cancelled_job_is_noticed(user):
    words = ("--env", "SLOW_S=0.1", "--wait", "--", *LONG, "--run-dir", "run")
    with ended(user.start(*words)) as process:
        user.wait_for_steps()
        user.cluster.tell("scancel", "--batch", "--signal=TERM", user.job())
        out, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 75, errors
    assert "and saved; go on with" in out
    assert "back into the queue" not in out


def test_a_job_at_its_time_limit_saves_requeues_and_finishes(user):
    """Its limit is far away until it trains, and again when it goes on: Slurm looks at limits every
    30 s, and would warn a job on busy cores before its ranks can save."""
    process = user.start(
        *("--nodes", "2", "--time", "30m", "--save-time", "120s"),
        *("--env", "SLOW_AT_FIRST_S=2", "--wait", "--", *LINE, "--run-dir", "run"),
    )
    with ended(process):
        user.wait_for_steps()
        minutes = int(re.search(r"RunTime=00:(\d\d):", _told(user))[1])
        _update(user, f"TimeLimit={minutes + 2}")
        wait_for("the job to be requeued", lambda: "Reason=BeginTime" in _told(user))
        # The end of the first script would count as that of the second.
        user.check_nothing_is_left()
        # Slurm lets a requeued job wait for two minutes. It may set that time only now.
        wait_for("the job to run again", lambda: _start(user))
        out, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, out + errors
    assert "back into the queue, time 1 of at most 10" in out
    assert "resuming" in out
    assert (user.place / "run" / "model.npz").exists()


def _told(user):
    return user.cluster.tell("scontrol", "--oneliner", "show", "job", user.job())


def _update(user, *settings):
    user.cluster.run(["scontrol", "update", f"JobId={user.job()}", *settings])


def _start(user):
    """Whether the requeued job has started, else let it."""
    told = _told(user)
    if "Reason=BeginTime" in told:
        _update(user, "TimeLimit=30", "StartTime=now")
        return False
    return "Restarts=1" in told and "JobState=PENDING" not in told
