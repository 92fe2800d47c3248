"""`paceline submit sge` on a real Grid Engine."""

import pytest
from support.clusters.cluster import HANG_S
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
def user(grid_engine):
    yield Submitting(grid_engine, "sge", "submit")
    grid_engine.run(["qdel", "-u", "root"])


def test_the_exit_code_of_a_job_is_returned(user):
    check_exit_code(user)


def test_an_array_has_a_run_for_each_seed(user):
    check_array(user)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--queue", "nowhere"), "Choose another --queue (there are: all.q)"),
        (("--nodes", "2", "--pe", "nowhere"), "Choose another --pe (there are: mpi, mpi_loose)"),
        (("--gpus-per-node", "1"), "unknown resource"),
        (("--name", "a b", "--nodes", "no"), "--nodes is 'no', expected: a whole number"),
    ],
    ids=["queue", "pe", "resource", "settings"],
)
def test_what_grid_engine_does_not_have_is_explained(user, words, complaint):
    done = user.submit(*words, "--", *LINE)
    assert done.returncode in (1, 2)
    assert complaint in done.stderr
    assert not list(user.place.glob("runs/*"))


def test_ctrl_c_spares_the_job_and_qdel_leaves_nothing(user):
    check_ctrl_c_spares_the_job(user, "qdel")


def test_a_deleted_job_on_one_node_saves_and_stays_ended(user):
    words = ("--env", "SLOW_S=0.1", "--wait", "--", *LONG, "--run-dir", "run")
    with ended(user.start(*words)) as process:
        user.wait_for_steps()
        user.cluster.tell("qdel", user.job())
        out, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 75, out + errors
    assert list((user.place / "run" / "checkpoints").glob("step-*"))
    assert "back into the queue" not in out


def test_a_job_at_its_time_limit_saves_requeues_and_finishes(user):
    """The warning comes after 20 s: ranks have started by then, on busy cores, too."""
    done = user.submit(
        *("--nodes", "2", "--time", "80s", "--save-time", "60s", "--env", "SLOW_AT_FIRST_S=2"),
        *("--wait", "--", *LINE, "--run-dir", "run"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "back into the queue, time 1 of at most 10" in done.stdout
    assert "resuming" in done.stdout
    assert (user.place / "run" / "model.npz").exists()
