"""`paceline submit sge` on a real Grid Engine."""

import os
import signal

import pytest

from clusters.submit_checks import (
    LINE,
    Submitting,
    check_array,
    check_ctrl_c_spares_the_job,
    check_exit_code,
    check_training_over_nodes,
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def user(grid_engine, request):
    yield Submitting(grid_engine, "sge", request.node.name)
    grid_engine.run(["qdel", "-u", "root"])


def test_the_digits_train_on_two_nodes(user):
    check_training_over_nodes(user)


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
    words = ("--env", "SLOW_S=0.3", "--wait", "--", *LINE, "--run-dir", "run")
    process = user.start(*words)
    try:
        user.wait_for_steps()
        user.cluster.tell("qdel", user.job())
        out, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 75, out + errors
    assert list((user.place / "run" / "checkpoints").glob("step-*"))
    assert "back into the queue" not in out


def test_a_job_at_its_time_limit_saves_requeues_and_finishes(user):
    done = user.submit(
        *("--nodes", "2", "--time", "60s", "--save-time", "45s", "--env", "SLOW_S=1", "--wait"),
        *("--", *LINE, "--run-dir", "run"),
        timeout_s=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "back into the queue, time 1 of at most 10" in done.stdout
    assert "resuming" in done.stdout
    assert (user.place / "run" / "model.npz").exists()
