import pytest

from paceline.launch.restarts import run_with_restarts
from paceline.launch.supervise import JobResult


def run_codes(codes, restarts, signalled=False):
    """Run a job that ends with these codes, one after the other; tell the pauses and the starts."""
    pauses, starts = [], []

    def run(number):
        starts.append(number)
        return JobResult(codes[number], signalled)

    ended = run_with_restarts(run, restarts, pauses.append)
    return ended.code, starts, pauses


def test_a_job_is_started_again_until_it_succeeds(capsys):
    assert run_codes([1, 137, 0, 1], restarts=3) == (0, [0, 1, 2], [1, 2])
    assert capsys.readouterr().err.splitlines() == [
        "paceline: the job failed with code 1; restart 1 of 3",
        "paceline: the job failed with code 137; restart 2 of 3",
    ]


def test_after_the_last_restart_the_failure_comes_back():
    assert run_codes([1, 3, 4], restarts=2) == (4, [0, 1, 2], [1, 2])


def test_the_pause_doubles_up_to_half_a_minute():
    assert run_codes([1] * 9, restarts=8)[2] == [1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.parametrize("code", [0, 2, 75])
def test_what_would_be_no_different_is_not_started_again(code, capsys):
    assert run_codes([code], restarts=3) == (code, [0], [])
    assert capsys.readouterr().err == ""


def test_a_job_that_was_told_to_end_is_not_started_again():
    assert run_codes([130], restarts=3, signalled=True) == (130, [0], [])


def test_without_restarts_a_failure_comes_back_at_once(capsys):
    assert run_codes([1], restarts=0) == (1, [0], [])
    assert capsys.readouterr().err == ""
