"""How a world ends when one of its ranks, or all of them, fail, under real mpirun."""

import re

import pytest

pytestmark = pytest.mark.timeout(150)
slow = pytest.mark.slow
HANG_S = 120


@pytest.mark.parametrize(
    "who", [*(pytest.param(rank, marks=slow) for rank in ("0", "1", "2")), "all"]
)
def test_an_exception_prints_once_names_rank_and_node_and_ends_all(mpirun, who):
    done = mpirun(3, "fail.py", "exception", who, timeout_s=HANG_S)
    assert done.returncode == 1
    assert done.stderr.count("ValueError: rank is unwell") == 1
    rank = "0" if who == "all" else who
    assert re.search(rf"paceline: ValueError on rank {rank} \(\S+\); all ranks", done.stderr)


@slow
def test_an_error_of_ours_is_one_line_without_traceback(mpirun):
    done = mpirun(2, "fail.py", "paceline", "1", timeout_s=HANG_S)
    assert done.returncode == 1
    assert re.search(r"DataError on rank 1 \(\S+\): file x is damaged", done.stderr)
    assert "Traceback" not in done.stderr


@slow
def test_a_rank_that_vanishes_ends_the_job_with_its_code(mpirun):
    done = mpirun(2, "fail.py", "exit", "1", timeout_s=HANG_S)
    assert done.returncode == 5


def test_a_rank_whose_output_is_closed_ends_the_job_all_the_same(mpirun):
    done = mpirun(2, "fail.py", "closed", "1", timeout_s=HANG_S)
    assert done.returncode == 1
    assert "ValueError on rank 1" in done.stderr
