"""Samples of uneven cost, under real MPI."""

import re

import pytest

PROGRAM = "uneven"


@pytest.mark.parametrize("nodes", ["one", "each", "two"])
def test_dealt_samples_are_with_one_rank_each_and_give_the_gradient_of_all(resident, nodes):
    for found in resident.on_all(3, f"{PROGRAM}:deal", nodes):
        assert found["once"]
        assert found["apart"] < 1e-6


def test_a_rank_that_becomes_slow_is_given_less_within_ten_steps(resident):
    fast, slow = resident(2, f"{PROGRAM}:follow_speeds")
    assert {a + b for a, b in zip(fast, slow, strict=True)} == {20}
    assert slow[20] < 0.7 * fast[20]
    assert all(b > 0.7 * a for a, b in zip(fast[:11], slow[:11], strict=True))


def test_costs_are_learned_in_one_epoch(resident):
    before, after = resident(2, f"{PROGRAM}:learn")
    assert after > before + 0.1


@pytest.mark.timeout(150)
@pytest.mark.parametrize("how", ["exception", pytest.param("kill", marks=pytest.mark.slow)])
def test_a_rank_that_fails_while_it_holds_samples_ends_all_with_one_message(mpirun, how):
    done = mpirun(3, "uneven.py", how, timeout_s=120)
    assert done.returncode == (1 if how == "exception" else 137)
    if how == "exception":
        assert done.stderr.count("ValueError: this sentence is bad") == 1
        message = r"paceline: ValueError on rank 1 \(\S+\) at step \d+; all ranks"
        assert re.search(message, done.stderr)
